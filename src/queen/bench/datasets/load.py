"""Loading a set by name: find its files, read the wanted split, bring it to the wanted size, and cache the result."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from queen.bench.datasets.npy_cache import load_cached
from queen.bench.datasets.pixels import Pixels, Selection, apply_selection
from queen.bench.datasets.registry import SETS, PackagedSet, PublishedSet
from queen.defenses.base import nearest
from queen.errors import OptionError

SPLITS = ("train", "test", "all")
ROOT_VARIABLE = "QUEEN_DATA"
Reader = Callable[[Path, Selection], Pixels]


@dataclass(frozen=True)
class Images:
    """Images x (n, C, H, W) in 0..1 as float32, labels y (n,) as int64, the names of the classes and the source.

    `source` is the file or package they come from; results made with packed images must say so.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    source: str


def load_set(
    name: str,
    split: str,
    *,
    root: Path | str | None = None,
    size: int | None = None,
    channels: int | None = None,
    count: int | None = None,
    cache: Path | str | None = None,
) -> Images:
    """The images of a split of one of `SETS`: "train", "test", or "all" for one after the other.

    `root` is the folder of published sets; without it, the folder named by the environment variable QUEEN_DATA, or
    else ./data. `size` scales the middle square to this many pixels per side, `channels` makes images grey (1) or
    coloured (3), and `count` draws this many of them, always the same ones. `cache` is a folder for decoded images,
    which many processes can share.
    """
    wanted = Selection(split, size, channels, count)
    _check(name, wanted)
    dataset = SETS[name]
    key: dict[str, object] = {"name": name, **asdict(wanted)}
    if isinstance(dataset, PackagedSet):
        source, read = dataset.source, dataset.read
    else:
        path, source, read_from = _locate(name, dataset, root)
        read = partial(read_from, path)
        state = path.stat()
        key |= {"path": str(path.resolve()), "bytes": state.st_size, "changed": state.st_mtime_ns}
    folder = None if cache is None else Path(cache)
    pixels = load_cached(folder, key, lambda: apply_selection(_read_splits(read, wanted), wanted))
    return _to_images(pixels, source)


def find_root(root: Path | str | None) -> Path:
    """The folder of published sets: the one given, or named by the environment variable QUEEN_DATA, or else ./data."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or "data")


def files_of_set(name: str, root: Path | str | None = None) -> list[Path]:
    """The file or folder that a set is read from; none if it comes with a package."""
    dataset = SETS[name]
    return [] if isinstance(dataset, PackagedSet) else [_locate(name, dataset, root)[0]]


def _check(name: str, wanted: Selection) -> None:
    if name not in SETS:
        raise OptionError(f"no data set '{name}'{nearest(name, SETS)}")
    if wanted.split not in SPLITS:
        raise OptionError(f"no split '{wanted.split}'{nearest(wanted.split, dict.fromkeys(SPLITS))}")
    for option in ("size", "channels", "count"):
        value = getattr(wanted, option)
        if value is not None and (type(value) is not int or value < 1):
            raise OptionError(f"{option} must be a whole number of at least 1, got {value!r}")
    if wanted.channels not in (None, 1, 3):
        raise OptionError(f"channels must be 1 or 3, got {wanted.channels}")


def _locate(name: str, dataset: PublishedSet, root: Path | str | None) -> tuple[Path, str, Reader]:
    """The first path under the root where the set lies, its source as results name it, and its reader; packs last."""
    top = find_root(root)
    readers: dict[str, Reader] = dict.fromkeys(dataset.places, dataset.read)
    if dataset.pack is not None:
        readers[dataset.pack.file] = dataset.pack.read
    for place, read in readers.items():
        for folder in (top, top / name):
            path = min(folder.glob(place), default=None)
            if path is not None:
                packed = " (packed)" if read != dataset.read else ""
                return path, f"{path.relative_to(top).as_posix()}{packed}", read
    raise OptionError(
        f"the data set '{name}' is not in '{top}': looked there and in '{top / name}' for {', '.join(readers)}. "
        f"It is published by {dataset.publisher}. Put one of these files into that folder, or name the folder where "
        f"they are with root=... or the environment variable {ROOT_VARIABLE}; docs/data.md says more"
    )


def _read_splits(read: Callable[[Selection], Pixels], wanted: Selection) -> Pixels:
    """One split, or both of them one after the other."""
    if wanted.split != "all":
        return read(wanted)
    train, test = (read(replace(wanted, split=split, count=None)) for split in ("train", "test"))
    if train.x.shape[1:] != test.x.shape[1:] or train.classes != test.classes:
        raise OptionError("the splits 'train' and 'test' have images of other sizes or other classes: take one of them")
    return Pixels(np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y]), train.classes)


def _to_images(pixels: Pixels, source: str) -> Images:
    scale = 255 if pixels.x.dtype == np.uint8 else 1
    x = np.divide(pixels.x, scale, dtype=np.float32, order="C")
    return Images(torch.from_numpy(x), torch.from_numpy(pixels.y), pixels.classes, source)
