"""Compact packs of small images: one .npz file whose arrays `SPLIT/000`, `SPLIT/001` .. are encoded mosaics of tiles.

`tile` is [side, columns], `SPLIT/n` the number of images and `y_SPLIT` their labels. Mosaics are AVIF (nearly lossless)
or lossless WebP. Tiles with a side of 28 pixels are grey.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queen.bench.datasets.pixels import PILLOW, Pixels, Selection, rows_in_split
from queen.bench.datasets.trees import DataError, reading
from queen.errors import OptionError

NAMES = ("fine_names", "names", "classes")
GREY_SIDE = 28


@dataclass(frozen=True)
class Pack:
    """One packed set: its file, the names of our splits in it, and those of its classes unless the pack has them.

    With `per_class`, both splits are drawn from one, and this many images of each class are the test split. `without`
    names a class to leave out; `relabel` maps stored labels to those of `classes`.
    """

    file: str
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    classes: tuple[str, ...] = ()
    per_class: int | None = None
    without: str = ""
    relabel: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None

    def read(self, path: Path, wanted: Selection) -> Pixels:
        """The images and labels of a split."""
        if wanted.split not in self.splits:
            raise OptionError(
                f"the pack '{self.file}' has no split '{wanted.split}', only {', '.join(self.splits)}: "
                "put the official archive beside it"
            )
        with reading(path.name), np.load(path, allow_pickle=False) as arrays:
            name = self.splits[wanted.split]
            x, y = _read_tiles(arrays, name), arrays[f"y_{name}"].astype(np.int64)
            stored: Any = next((arrays[key] for key in NAMES if key in arrays.files), range(y.max(initial=0) + 1))
        y = y if self.relabel is None else self.relabel(y)
        pixels = Pixels(x, y, self.classes or tuple(str(name) for name in stored))
        if self.without:
            pixels = _drop_class(pixels, self.without)
        return pixels if self.per_class is None else pixels.take(rows_in_split(pixels.y, wanted.split, self.per_class))


def _read_tiles(arrays: Mapping[str, NDArray[Any]], split: str) -> NDArray[np.uint8]:
    """All tiles of a split, (n, C, side, side)."""
    side, columns = (int(number) for number in arrays["tile"])
    mosaics = sorted(key for key in arrays if key.startswith(f"{split}/") and key != f"{split}/n")
    parts = []
    for key in mosaics:
        mosaic = _decode_mosaic(arrays[key].tobytes(), "L" if side == GREY_SIDE else "RGB")
        if mosaic.shape[1] != side * columns or mosaic.shape[0] % side:
            raise DataError(f"expected mosaics {side * columns} wide in whole rows of {side}, got {mosaic.shape[:2]}")
        tiles = mosaic.reshape(-1, side, columns, side, mosaic.shape[2]).transpose(0, 2, 4, 1, 3)
        parts.append(tiles.reshape(-1, mosaic.shape[2], side, side))
    count = int(arrays[f"{split}/n"])
    if sum(map(len, parts)) < count:
        raise DataError(f"expected {count} images of '{split}', got {sum(map(len, parts))}; is the copy complete?")
    return np.concatenate(parts)[:count]


def _decode_mosaic(data: bytes, mode: str) -> NDArray[np.uint8]:
    """The pixels (H, W, C) of a mosaic; `mode` is Pillow's."""
    try:
        from PIL import Image, features  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(PILLOW) from error
    avif = data[4:12] == b"ftypavif"
    if avif and "avif" not in features.get_supported():
        raise OptionError("this pack needs Pillow 11.3 or newer, built with AVIF: pip install --upgrade pillow")
    pixels = np.asarray(Image.open(io.BytesIO(data), formats=("AVIF",) if avif else ("WEBP", "PNG")).convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)


def _drop_class(pixels: Pixels, name: str) -> Pixels:
    """The images of the other classes, which are numbered anew."""
    if name not in pixels.classes:
        raise DataError(f"expected a class '{name}' to leave out")
    number = pixels.classes.index(name)
    rows = np.flatnonzero(pixels.y != number)
    y = pixels.y[rows]
    return Pixels(pixels.x[rows], y - (y > number), tuple(c for c in pixels.classes if c != name))
