"""The data a user may bring: (x, y) tensors or arrays, a Dataset or a DataLoader; to calibrate also x alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from queen.core import inputs
from queen.errors import DtypeError, ShapeError
from queen.types import Inputs

Data = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
"""Images with labels: (x, y), or what yields such pairs."""

Images = Data | Tensor | np.ndarray[Any, Any] | Mapping[str, Any] | list[Inputs]
"""Images whose labels do not matter: x, (x, y), a list of batches x, or what yields x or pairs."""

BATCH = 256


def batches(data: Images) -> Iterable[tuple[Inputs, Tensor]]:
    """The data as batches (x, y); an error if it has no labels."""
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ShapeError(f"expected data as (x, y), got a tuple of {len(data)}")
        x, y = _tensor(data[0], "x"), _tensor(data[1], "y")
        if isinstance(y, Mapping):
            raise DtypeError("expected labels as one tensor, got named tensors")
        if inputs.count(x) != len(y):
            raise ShapeError(f"expected one label an image, got {inputs.count(x)} images and {len(y)} labels")
        return ((inputs.take(x, slice(i, i + BATCH)), y[i : i + BATCH]) for i in range(0, len(y), BATCH))
    if isinstance(data, DataLoader):
        return map(_pair, data)
    if isinstance(data, Dataset):
        return map(_pair, _load(data))
    raise DtypeError(f"expected data as (x, y) tensors, a Dataset or a DataLoader, got {type(data).__name__}")


def image_batches(data: Images) -> Iterable[tuple[Inputs, Tensor | None]]:
    """The data as batches (x, y), y None where it has no labels."""
    if isinstance(data, tuple):
        return batches(data)
    if isinstance(data, Dataset):
        data = _load(data)
    if isinstance(data, DataLoader):
        return map(_images, data)
    if isinstance(data, list) and all(isinstance(batch, Tensor | np.ndarray | Mapping) for batch in data):
        return ((_tensor(batch, "x"), None) for batch in data)
    if not isinstance(data, Tensor | np.ndarray | Mapping):
        raise DtypeError(
            f"expected images x, (x, y), a Dataset, a DataLoader or a list of batches x, got {type(data).__name__}"
            f"{inputs.way_to_array(data)}"
        )
    x = _tensor(data, "x")
    return ((inputs.take(x, slice(i, i + BATCH)), None) for i in range(0, inputs.count(x), BATCH))


def count_batches(data: Images) -> int | None:
    """How many batches `batches` or `image_batches` will give; None where the data does not say."""
    if isinstance(data, Dataset):
        data = _load(data)
    try:
        if isinstance(data, tuple):
            return -(-len(data[1]) // BATCH)
        if isinstance(data, Mapping):
            return -(-len(next(iter(data.values()))) // BATCH)
        return -(-len(data) // BATCH) if isinstance(data, Tensor | np.ndarray) else len(data)
    except (TypeError, IndexError, StopIteration):  # a stream has no length; wrong data is named where it is read
        return None


def _load(data: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(data, batch_size=BATCH, generator=torch.Generator())  # not the global one


def _images(batch: Any) -> tuple[Inputs, Tensor | None]:
    """One batch of a loader: x alone, or a pair."""
    if isinstance(batch, tuple | list) and len(batch) == 1:
        batch = batch[0]
    return (batch, None) if isinstance(batch, Tensor | Mapping) else _pair(batch)


def _pair(batch: Any) -> tuple[Inputs, Tensor]:
    """One batch of a loader, which must be a pair."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise DtypeError(f"expected batches of images and integer labels, (x, y), got {got}")
    return batch[0], batch[1]


def _tensor(value: Any, name: str) -> Inputs:
    if isinstance(value, Mapping):
        return {key: _tensor(v, f"{name}['{key}']") for key, v in value.items()}  # type: ignore[misc]
    if inputs.is_table(value):
        return inputs.to_tensor(value, name)  # which says how to give it
    try:
        return torch.as_tensor(value)  # which does not copy arrays: they may be larger than memory
    except (TypeError, ValueError, RuntimeError):
        return inputs.to_tensor(value, name)
