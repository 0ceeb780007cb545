"""An owner's images as tensors: given as such, as arrays that may lie on disk, or as a Dataset that is written there.

A tensor on the CPU that shares memory with a file takes no memory of its own: rows are read when they are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from queen.errors import DtypeError, OptionError, ShapeError
from queen.fit.data import image_batches

Array = Tensor | NDArray[Any]
Owned = Array | tuple[Array, Array] | Dataset[Any]
"""Images x, images and labels (x, y), or a Dataset of either."""


def as_tensors(data: Owned, name: str, like: Tensor, folder: Path) -> tuple[Tensor, Tensor | None]:
    """Images (n, ...) in 0..1 and labels (n,), None where there are none, on the device and of the type of `like`.

    A Dataset is read once and written to `folder`; `name` says in errors which images are meant.
    """
    if isinstance(data, Dataset):
        data = _write(data, name, like.dtype, folder)
    x, y = data if isinstance(data, tuple) else (data, None)
    images = _check_images(_share(x, name), name, like.dtype)
    labels = None if y is None else _share(y, name).long()
    if labels is not None and len(labels) != len(images):
        raise ShapeError(f"{name}: expected one label an image, got {len(images)} images and {len(labels)} labels")
    return images.to(like.device), None if labels is None else labels.to(like.device)


def _share(value: Array, name: str) -> Tensor:
    """An array as a tensor in the same memory; one that lies on disk stays there."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise DtypeError(f"{name}: expected a tensor, an array or a Dataset, got {type(value).__name__}")
    with warnings.catch_warnings():  # of an array that may not be written to: nobody will
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(value)


def _check_type(dtype: torch.dtype, name: str, expected: torch.dtype) -> None:
    if dtype != expected:
        raise DtypeError(f"{name}: expected images in 0..1 as {expected}, the model's type, got {dtype}: convert them")


def _check_images(x: Tensor, name: str, expected: torch.dtype) -> Tensor:
    """Refuse images that attacks would change: they shift, mix and move images, and cut the result to 0..1."""
    _check_type(x.dtype, name, expected)
    if len(x) == 0:
        raise ShapeError(f"{name}: expected at least one image, got none")
    low, high = (value.item() for value in x.aminmax())
    if not (low >= 0 and high <= 1):
        raise OptionError(
            f"{name}: expected images in 0..1, got numbers from {low:g} to {high:g}, which attacks would cut off. Give "
            "images as they are before any normalisation, and the model that normalises them itself: "
            "queen.zoo.Normalised(model, mean, std)"
        )
    return x


def _write(data: Dataset[Any], name: str, dtype: torch.dtype, folder: Path) -> Array | tuple[Array, Array]:
    """Images and labels of a Dataset in files of `folder`, batch by batch, and mapped from there."""
    if not isinstance(data, Sized):
        raise OptionError(f"{name}: expected a Dataset with a length, got {type(data).__name__} without one")
    labels: list[Tensor] = []
    images: NDArray[Any] | None = None
    start = 0
    for x, y in image_batches(data):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{name}: expected images as one tensor, got named tensors")
        _check_type(x.dtype, name, dtype)
        if images is None:
            shape = (len(data), *x.shape[1:])
            path = folder / f"{name}.npy"
            images = np.lib.format.open_memmap(path, mode="w+", dtype=x.numpy().dtype, shape=shape)
        images[start : start + len(x)] = x.numpy()
        start += len(x)
        labels += [] if y is None else [y]
    if images is None:
        raise ShapeError(f"{name}: expected at least one image, got none")
    return (images, torch.cat(labels)) if labels else images
