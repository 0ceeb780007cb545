"""The data a user may bring: (x, y) tensors or arrays, a Dataset or a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from queen.core import inputs
from queen.errors import DtypeError, ShapeError
from queen.types import Inputs

Data = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
BATCH = 256


def batches(data: Data) -> Iterable[tuple[Inputs, Tensor]]:
    """The data as batches (x, y)."""
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
        return map(_pair, DataLoader(data, batch_size=BATCH, generator=torch.Generator()))  # not the global one
    raise DtypeError(f"expected data as (x, y) tensors, a Dataset or a DataLoader, got {type(data).__name__}")


def _pair(batch: Any) -> tuple[Inputs, Tensor]:
    """One batch of a loader, which must be a pair."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise DtypeError(f"expected batches of images and integer labels, (x, y), got {got}")
    return batch[0], batch[1]


def _tensor(value: Any, name: str) -> Inputs:
    if isinstance(value, Mapping):
        return {key: torch.as_tensor(v) for key, v in value.items()}
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"expected {name} as a tensor or array, got {type(value).__name__}") from error
