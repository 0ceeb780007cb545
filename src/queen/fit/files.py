"""Files that users hand to the command line: weights, data, queries, images. A bad one is an error of one line."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from queen.bundle.bundle import Bundle
from queen.errors import OptionError, ShapeError, reason
from queen.fit.data import Images
from queen.models import as_module
from queen.recipe import Recipe
from queen.types import Inputs
from queen.zoo import NETWORKS

Result = TypeVar("Result")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
COLOURS = {  # modes of Pillow's
    "1": "in black and white",
    "L": "in grey",
    "LA": "in grey with transparency",
    "I;16": "in grey of 16 bits",
    "RGB": "in colour",
    "RGBA": "in colour with transparency",
    "P": "in colours of a palette",
    "CMYK": "in colours for print",
}
SLACK = 0.01  # by which images in 0..1 may exceed that, as after resizing
UNREADABLE = (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)


def attempt(action: Callable[[], Result], problem: str, *errors: type[Exception]) -> Result:
    """Run `action`; one of the `errors` becomes an `OptionError` of one line that starts with the problem."""
    try:
        return action()
    except errors as error:
        raise OptionError(f"{problem}: {reason(error)[:300]}") from error


def _read_arrays(path: Path, problem: str) -> Any:
    """The array of an .npy file, or the arrays of an .npz file by name."""

    def read() -> Any:
        with path.open("rb") as file:
            if not file.read(6).startswith((b"\x93NUMPY", b"PK")):
                raise ValueError("it is neither an .npy nor an .npz file")
        return np.load(path, allow_pickle=False)

    return attempt(read, problem, *UNREADABLE)


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be written, without making it."""
    above = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OptionError(f"cannot write to '{path}': '{above}' is not a folder that can be written")


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from .safetensors; pickled checkpoints are refused because loading one may run its code."""
    if path.suffix != ".safetensors":
        raise OptionError(
            f"expected weights as .safetensors, got '{path.name}': convert them once with "
            "safetensors.torch.save_model(model, 'model.safetensors')"
        )
    return attempt(lambda: safetensors.torch.load_file(path), f"cannot read weights '{path}'", OSError, SafetensorError)


def read_model(name: str, args: Sequence[str], weights: Path | None) -> tuple[nn.Module, Recipe | None]:
    """The model that a command names, and how to build it again: an .onnx file, or a factory (or a network of
    `queen.zoo`) with `args` and its weights."""
    if name.endswith(".onnx"):
        if args or weights:
            raise OptionError(f"'{name}' holds its weights and takes no arguments: leave out --weights and --arg")
        return as_module(name), None
    if ":" not in name and name not in NETWORKS:
        raise OptionError(
            f"expected package.module:factory, an .onnx file or a network of queen.zoo ({', '.join(NETWORKS)}), got "
            f"'{name}'"
        )
    known = factory_args(list(args))
    recipe = Recipe("queen.zoo:build", {"name": name, **known}) if name in NETWORKS else Recipe(name, known)
    if weights is None:
        raise OptionError(f"expected the trained weights of '{name}', --weights FILE.safetensors, got none")
    try:
        model = as_module(recipe.build())
    except OptionError as error:
        raise OptionError(f"cannot build '{name}': {error}") from error
    except Exception as error:  # whatever a factory may raise
        raise OptionError(f"cannot build '{name}': {type(error).__name__}: {reason(error)[:300]}") from error
    state = read_weights(weights)
    attempt(lambda: model.load_state_dict(state), f"'{weights}' does not fit '{name}'", RuntimeError)
    return model, recipe


def read_data(path: Path) -> tuple[Tensor, Tensor | NDArray[np.str_]]:
    """(x, y) from an .npz file; labels may be the names of classes, where the model knows these."""
    arrays = _read_arrays(path, f"cannot read data '{path}'")
    if not hasattr(arrays, "files") or not {"x", "y"} <= set(arrays.files):
        raise OptionError(f"expected '{path}' to be an .npz file with arrays x and y")
    problem = f"cannot use x and y of '{path}'"
    x, y = attempt(lambda: (_tensor(arrays["x"]), arrays["y"]), problem, *UNREADABLE)
    return x, y if y.dtype.kind == "U" else attempt(lambda: _tensor(y), problem, *UNREADABLE)


@dataclass(frozen=True)
class Prepared:
    """How a model wants its images: like this batch, and (x - mean) / std if it has these.

    `span` is the smallest and the largest number in its training images, if known: without mean and std it tells
    whether the model takes images as files hold them, in 0..1.
    """

    like: Inputs
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    span: tuple[float, float] | None = None

    @classmethod
    def by(cls, bundle: Bundle) -> Prepared:
        """As a bundle says."""
        return cls(bundle.probe.x, bundle.pixel_mean, bundle.pixel_std, bundle.input_range)


def read_images(path: Path, prepared: Prepared | None = None) -> Images:
    """Images from .npy, or from .npz with x and perhaps y; if it is said how to prepare them, also from a folder."""
    if prepared is not None and path.is_dir():
        return _read_folder(path, prepared)
    arrays = _read_arrays(path, f"cannot read images '{path}'")
    if isinstance(arrays, np.ndarray):
        return attempt(lambda: _tensor(arrays), f"cannot use '{path}'", *UNREADABLE)
    if "x" not in arrays.files:
        raise OptionError(f"expected '{path}' to be an .npz file with an array x, or an .npy file")
    if "y" in arrays.files:
        return read_data(path)
    return attempt(lambda: _tensor(arrays["x"]), f"cannot use x of '{path}'", *UNREADABLE)


def _read_folder(folder: Path, prepared: Prepared) -> Tensor:
    """All images below a folder, in the order of their names."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise OptionError(f"no images in '{folder}': expected files ending in {', '.join(IMAGE_SUFFIXES)}")
    return torch.cat([_read_image(path, prepared) for path in paths])


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def read_query(path: Path, bundle: Bundle, on_convert: Callable[[str], None] = lambda sentence: None) -> Tensor:
    """One query or a batch from .npy, or an image prepared as the bundle says.

    `on_convert` is told in a sentence if the image is of another size, or in other colours, than what the model takes.
    """
    like = bundle.probe.x
    if not isinstance(like, Tensor):
        raise OptionError("this model takes several named tensors: use the Python library to ask it")
    if path.suffix == ".npz":
        raise OptionError(f"expected an image, or .npy with one query or a batch, got several arrays: '{path}'")
    if path.suffix != ".npy":
        return _read_image(path, Prepared.by(bundle), on_convert)
    array = _read_arrays(path, f"cannot read '{path}'")
    x = attempt(lambda: _tensor(array), f"cannot read '{path}'", *UNREADABLE)
    return x[None] if x.ndim == like.ndim - 1 else x


def _read_image(path: Path, prepared: Prepared, on_convert: Callable[[str], None] = lambda sentence: None) -> Tensor:
    """(1, C, H, W) in 0..1, resized to the model's size, then (x - mean) / std if these are known."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  (an extra)

    like = prepared.like
    if not isinstance(like, Tensor) or like.ndim != 4 or like.shape[1] not in (1, 3):
        shape = f"inputs (n, {', '.join(map(str, like.shape[1:]))})" if isinstance(like, Tensor) else "named tensors"
        raise ShapeError(f"this model takes {shape}, not images: use .npy")
    _check_units(prepared)
    channels, height, width = like.shape[1:]
    problem = f"cannot read image '{path}'"
    opened = attempt(lambda: Image.open(path), problem, OSError, UnidentifiedImageError)
    had, wanted = (opened.size, opened.mode), ((width, height), "L" if channels == 1 else "RGB")
    if opened.mode.startswith("I"):  # 16 bits per pixel, which convert() would clip
        opened = Image.fromarray((np.asarray(opened) / 257).round().astype(np.uint8))  # type: ignore[assignment]
    image = attempt(lambda: opened.convert(wanted[1]).resize(wanted[0]), problem, OSError)
    if had != wanted:
        on_convert(f"'{path}' was converted from {_describe(*had)} to {_describe(*wanted)}, which the model takes")
    x = torch.from_numpy(np.asarray(image, np.float32) / 255).view(height, width, channels).permute(2, 0, 1)
    if prepared.mean and prepared.std:
        x = (x - torch.tensor(prepared.mean)[:, None, None]) / torch.tensor(prepared.std)[:, None, None]
    return x[None].contiguous()


def _describe(size: tuple[int, int], mode: str) -> str:
    """An image of this size and mode of Pillow's, in words."""
    return f"{size[0]} x {size[1]} pixels {COLOURS.get(mode, f'of mode {mode}')}"


def _check_units(prepared: Prepared) -> None:
    """Refuse to read image files for a model that takes other numbers than 0..1, and does not say which."""
    if prepared.mean and prepared.std:
        return
    if prepared.span is not None:
        low, high = prepared.span
        fits, got = low >= -SLACK and high <= 1 + SLACK, f"in {low:.3g}..{high:.3g}"
    else:  # a bundle's batch has about the mean and the deviation of its training images: in 0..1 at most a half
        batch = prepared.like.float() if isinstance(prepared.like, Tensor) else torch.zeros(1)
        mean, deviation = float(batch.mean()), float(batch.std(correction=0))
        fits = -0.1 <= mean <= 1.1 and deviation <= 0.6
        got = f"of mean {mean:.3g} and standard deviation {deviation:.3g}"
    if not fits:
        raise OptionError(
            f"expected a model trained on images in 0..1, or pixel_mean and pixel_std, got training images {got}: "
            "image files would enter in the wrong units; give .npy or .npz in the model's units, or protect the "
            "model with pixel_mean and pixel_std"
        )


def write_image(x: Tensor, path: Path) -> None:
    """A grey image (1, H, W) in 0..1 as PNG."""
    from PIL import Image  # noqa: PLC0415  (an extra)

    Image.fromarray((x[0] * 255).round().byte().numpy()).save(path)


def factory_args(pairs: list[str]) -> dict[str, Any]:
    """`name=value` pairs as keyword arguments; a value is JSON where it parses and a string otherwise."""
    args = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise OptionError(f"expected --arg name=value, got '{pair}'")
        try:
            args[name] = json.loads(value)
        except ValueError:
            args[name] = value
    return args
