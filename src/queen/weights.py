"""Weights in files: those that others trained, read into a network of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn

from queen.errors import OptionError
from queen.zoo import Normalised, Residual, ResNet

Weights = Mapping[str, Tensor]
NAMED = 3  # keys that an error names


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
    """Tensors by name from a file of safetensors or a state_dict; nothing in it is executed."""
    try:
        content: Any = load(path.read_bytes()) if path.suffix == ".safetensors" else _read_state_dict(path)
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
