"""Weights in files: those that others trained, and those that travel between machines."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from queen.atomic import write_atomically
from queen.cache import Cache
from queen.errors import OptionError
from queen.zoo import Normalised, Residual, ResNet

Weights = Mapping[str, Tensor]
NAMED = 3  # keys that an error names
PART = 15 * 2**20  # bytes of a file at most
DIGITS = 16  # of the weights' SHA-256 in a file's name


def load_weights(network: nn.Module, path: Path) -> nn.Module:
    """The network with the weights of a file, in eval mode: safetensors, or a state_dict that `torch.save` wrote.

    A network that normalises also takes the weights of what it wraps, and a ResNet those of torchvision.
    """
    weights, inner = read_weights(path), network
    if isinstance(network, Normalised) and not any(key.startswith("network.") for key in weights):
        inner = network.network
    if isinstance(inner, ResNet):
        weights = rename_torchvision(weights, inner)
    _check_fit(weights, inner.state_dict(), path)
    inner.load_state_dict(weights)
    return network.eval()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a file of safetensors (or its parts) or a state_dict; nothing in it is executed."""
    try:
        content: Any = load(_read_whole(path)) if path.suffix == ".safetensors" else _read_state_dict(path)
    except OSError as error:
        raise OptionError(f"cannot read the weights '{path}': {error.strerror}") from error
    except Exception as error:  # torch's reader of state_dicts fails in many ways on other files
        raise OptionError(
            f"'{path}' holds no weights: expected *.safetensors, or what torch.save(model.state_dict(), path) wrote"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise OptionError(
            f"'{path}' must hold tensors by name, got {type(content).__name__}: save model.state_dict() alone"
        )
    return dict(content)


def _read_state_dict(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def rename_torchvision(weights: Weights, network: ResNet) -> dict[str, Tensor]:
    """Weights of torchvision's ResNet under the names that ours has for them; other names stay."""
    first = next(i for i, layer in enumerate(network.features) if isinstance(layer, Residual))
    plain = {"conv1": "features.0", "bn1": "features.1", "fc": "classifier"}

    def rename(key: str) -> str:
        block = re.fullmatch(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)", key)
        if block is None:
            layer, _, leaf = key.rpartition(".")
            return f"{plain.get(layer, layer)}.{leaf}"
        stage, number, kind, place, leaf = block.groups()
        index = first + sum(network.depths[: int(stage) - 1]) + int(number)
        if kind == "downsample.":
            return f"features.{index}.skip.{place}.{leaf}"
        return f"features.{index}.body.{3 * int(place) - 3 + (kind == 'bn')}.{leaf}"  # convolution, batch norm, ReLU

    return {rename(key): value for key, value in weights.items()}


def _check_fit(weights: Weights, expected: Weights, path: Path) -> None:
    """Refuse weights that are not exactly the network's, in words: torch's own error lists every key."""
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    wrong = [f"no '{key}'" for key in expected if key not in shapes]
    wrong += [f"'{key}' is unknown" for key in shapes if key not in expected]
    wrong += [
        f"'{key}' has shape {shapes[key]}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in shapes and shapes[key] != tuple(value.shape)
    ]
    if wrong:
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise OptionError(
            f"the weights '{path}' do not fit the network: {'; '.join(wrong[:NAMED])}{more}. Expected the weights of "
            "the spec's network: compare its name, classes, channels, width and image_size"
        )


def sha256_of(network: nn.Module) -> str:
    """The SHA-256 of a network's weights, by which results name it; the same on every machine and device."""
    sha = hashlib.sha256()
    for key, value in sorted(network.state_dict().items()):
        sha.update(f"{key} {value.dtype} {tuple(value.shape)}:".encode())
        sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def travelling_network(cache: Cache, name: str, blank: nn.Module, teach: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A network like `blank` with the weights that lie in the cache under this name; if there are none, `teach` makes
    them now.

    They are stored as float16, half the size to carry to another machine, in files of at most 15 MiB; and what is
    stored is what is returned, so that all machines with the same files have the same network. A file's name ends with
    the first digits of `sha256_of`. Files that are not whole are an error: another network in their place would make
    other results without a word.
    """
    with cache.lock(name):
        network = _find_stored(cache.folder, name, blank)
        if network is None:
            network = copy.deepcopy(blank)
            weights = _halve(teach(copy.deepcopy(blank)).state_dict())
            network.load_state_dict(weights)
            _write_parts(cache.folder / f"{name}-{sha256_of(network)[:DIGITS]}.safetensors", save(weights))
        return network.eval()


def _halve(weights: Weights) -> dict[str, Tensor]:
    """Numbers as float16, except in tensors with a number that is too large for it."""
    plain = {key: value.detach().cpu().contiguous() for key, value in weights.items()}
    return {
        key: value.half() if value.is_floating_point() and value.half().isfinite().all() else value
        for key, value in plain.items()
    }


def _write_parts(path: Path, content: bytes) -> None:
    """The content in files PATH.1-of-N to PATH.N-of-N; `cat` makes one of them again."""
    parts = [content[start : start + PART] for start in range(0, len(content), PART)]
    for number, part in enumerate(parts, 1):
        write_atomically(path.with_name(f"{path.name}.{number}-of-{len(parts)}"), part)


def files_of_weights(path: Path) -> list[Path]:
    """The file of this name, or its parts where there are such instead, also those that are missing."""
    part = min(path.parent.glob(f"{path.name}.*-of-*"), default=None)
    if part is None or path.exists():
        return [path]
    count = int(part.name.rpartition("-")[2])
    return [path.with_name(f"{path.name}.{number}-of-{count}") for number in range(1, count + 1)]


def _read_whole(path: Path) -> bytes:
    return b"".join(part.read_bytes() for part in files_of_weights(path))


def _find_stored(folder: Path, name: str, blank: nn.Module) -> nn.Module | None:
    """The one network under this name; None without any, an error where there are two or it is not whole."""
    files = folder.glob(f"{name}-{'[0-9a-f]' * DIGITS}.safetensors*")
    paths = sorted({file.with_name(f"{file.name.rpartition('.safetensors')[0]}.safetensors") for file in files})
    if len(paths) > 1:
        raise OptionError(
            f"expected one network '{name}' in '{folder}', got {len(paths)}: {', '.join(path.name for path in paths)}. "
            "Remove the parts of all but the one that your results name"
        )
    return _load_stored(paths[0], blank) if paths else None


def _load_stored(path: Path, blank: nn.Module) -> nn.Module:
    """A network like `blank` with the weights of this file or its parts, if they are those that its name says."""
    network, files = copy.deepcopy(blank), files_of_weights(path)
    present = [file.name for file in files if file.exists()]
    if len(present) < len(files):
        raise OptionError(
            f"expected {len(files)} parts of '{path}', got {', '.join(present)}: "
            "copy the rest, or remove them to train anew"
        )
    try:
        network.load_state_dict(load(_read_whole(path)))
        whole = path.stem.endswith(f"-{sha256_of(network)[:DIGITS]}")
    except (SafetensorError, RuntimeError):
        whole = False
    if not whole:
        raise OptionError(
            f"expected weights whose SHA-256 begins as '{path}' says, got damaged ones in {', '.join(present)}: "
            "copy them again, or remove them to train anew"
        )
    return network
