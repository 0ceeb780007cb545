"""Images of a data set as arrays: which of them are wanted and in which size, and how image files are decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from queen.bench.datasets.trees import DataError, Tree, reading
from queen.errors import OptionError
from queen.extras import install

SEED = 123  # of every split and selection that the publisher did not fix
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP")  # not all that Pillow knows: some run programs
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LUMA = (0.299, 0.587, 0.114)
CHUNK = 4096
PILLOW = f"images are read with Pillow: {install('bench')}"


@dataclass(frozen=True)
class Selection:
    """The wanted part of a set: its split and, unless None, the side in pixels, 1 or 3 channels, how many images."""

    split: str
    size: int | None = None
    channels: int | None = None
    count: int | None = None


@dataclass(frozen=True)
class Pixels:
    """Images x (n, C, H, W) in uint8, or in float32 from 0 to 1, their labels y (n,) and the names of the classes."""

    x: NDArray[np.uint8] | NDArray[np.float32]
    y: NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or len(self.x) != len(self.y):
            raise DataError(f"expected images (n, C, H, W) and n labels, got {self.x.shape} and {self.y.shape}")
        if len(self.y) == 0:
            raise DataError("there are no images")
        if self.y.min() < 0 or self.y.max() >= len(self.classes):
            raise DataError(
                f"expected labels from 0 to {len(self.classes) - 1}, got {self.y.min()} to {self.y.max()}: "
                "images and names of classes do not belong together"
            )

    def take(self, rows: NDArray[np.intp]) -> Pixels:
        """The given rows only."""
        return self if len(rows) == len(self.y) else Pixels(self.x[rows], self.y[rows], self.classes)


def choose_rows(total: int, count: int | None) -> NDArray[np.intp]:
    """The rows of a fixed random selection of `count` out of `total`, in order; all rows without a count."""
    if count is None or count >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(SEED).permutation(total)[:count])


def rows_in_split(y: NDArray[np.int64], split: str, per_class: int | None = None) -> NDArray[np.intp]:
    """The rows of "train" or "test" in a set with labels y (n,) but without an official split.

    `per_class` images of each class, or else a fifth of them, are the test split. The draw is fixed, and at least one
    image of each class is left to train on.
    """
    generator = np.random.default_rng(SEED)
    test = np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        count = min(len(rows) // 5 if per_class is None else per_class, len(rows) - 1)
        test[generator.permutation(rows)[:count]] = True
    return np.flatnonzero(test == (split == "test"))


def decode(tree: Tree, listed: Sequence[tuple[str, int]], classes: tuple[str, ...], wanted: Selection) -> Pixels:
    """The image files of (name, label) pairs: only those selected are decoded, each at the wanted size."""
    if not listed:
        raise DataError(f"'{tree.path.name}' has no images of the split '{wanted.split}'; is the copy complete?")
    listed = [listed[row] for row in choose_rows(len(listed), wanted.count)]
    rows = {name: row for row, (name, _) in enumerate(listed)}
    if len(rows) < len(listed):
        raise DataError(f"'{tree.path.name}' lists an image twice")
    x: NDArray[np.uint8] | None = None
    for name, data in tree.read(rows):
        with reading(f"{tree.path.name}, {name}"):
            image = _decode_image(data, wanted)
        if x is None:
            x = np.empty((len(rows), *image.shape), np.uint8)
        if x.shape[1:] != image.shape:
            raise OptionError(
                f"images of '{tree.path.name}' have different sizes, such as {x.shape[-2]}x{x.shape[-1]} and "
                f"{image.shape[-2]}x{image.shape[-1]}: choose one with size=..."
            )
        x[rows[name]] = image
    assert x is not None  # noqa: S101  (read() yields every name or raises)
    return Pixels(x, np.array([label for _, label in listed], np.int64), classes)


def _decode_image(data: bytes, wanted: Selection) -> NDArray[np.uint8]:
    """The whole image (C, H, W), or its middle square in the wanted size."""
    try:
        from PIL import Image, ImageOps  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(PILLOW) from error
    opened = Image.open(io.BytesIO(data), formats=FORMATS)
    if opened.mode.startswith(("I", "F")):
        raise DataError(f"expected 8 bits a colour, got an image of mode '{opened.mode}'")
    image = opened.convert("L" if wanted.channels == 1 else "RGB")
    if wanted.size is not None and image.size != (wanted.size, wanted.size):
        image = ImageOps.fit(image, (wanted.size, wanted.size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def apply_selection(pixels: Pixels, wanted: Selection) -> Pixels:
    """Bring images to the wanted count, size and channels, as far as their reader has not done so."""
    pixels = pixels.take(choose_rows(len(pixels.y), wanted.count))
    shape = (
        wanted.channels or pixels.x.shape[1],
        wanted.size or pixels.x.shape[2],
        wanted.size or pixels.x.shape[3],
    )
    if shape == pixels.x.shape[1:]:
        return pixels
    x = np.empty((len(pixels.x), *shape), pixels.x.dtype)
    for start in range(0, len(x), CHUNK):
        part = torch.from_numpy(pixels.x[start : start + CHUNK].astype(np.float32))
        part = resize(recolour(part, shape[0]), wanted.size)
        x[start : start + CHUNK] = (part.round() if x.dtype == np.uint8 else part).numpy()
    return Pixels(x, pixels.y, pixels.classes)


def resize(x: Tensor, size: int | None) -> Tensor:
    """The middle square of images (n, C, H, W) at another size; smoothed when it shrinks, as Pillow does."""
    if size is None:
        return x
    side = min(x.shape[2:])
    top, left = (x.shape[2] - side) // 2, (x.shape[3] - side) // 2
    x = x[..., top : top + side, left : left + side]
    return x if side == size else F.interpolate(x, (size, size), mode="bilinear", antialias=True)


def recolour(x: Tensor, channels: int) -> Tensor:
    """Images (n, C, H, W) with one channel, their brightness, or with three, which are equal if they were grey."""
    if x.shape[1] == channels:
        return x
    if channels == 3:
        return x.expand(-1, 3, -1, -1)
    return (x * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
