"""Batches as models take them, one tensor or several named ones; only this module knows the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from queen.errors import DtypeError, EmptyBatchError, NotFiniteError, OptionError, RangeError, ShapeError
from queen.types import Arrays, Inputs


def find_device(name: str | torch.device) -> torch.device:
    """The device of this name; `OptionError` if this machine has none."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"no device '{name}': expected cpu, cuda or cuda:NUMBER") from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"no device '{name}' here: {' '.join(str(error).split())[:200]}") from error
    return device


def tensors(x: Inputs) -> dict[str, Tensor]:
    """All tensors of a batch by name; a single one is called "x"."""
    return dict(x) if isinstance(x, Mapping) else {"x": x}


def has_arrays(x: object) -> bool:
    """Whether a batch is numpy arrays instead of tensors."""
    return isinstance(x, np.ndarray) or (
        isinstance(x, Mapping) and any(isinstance(part, np.ndarray) for part in x.values())
    )


def as_tensors(x: Inputs | Arrays) -> Inputs:
    """A batch whose arrays are tensors now; all else is left for `check` to refuse."""
    if isinstance(x, Mapping):
        return {name: to_tensor(part, name) if isinstance(part, np.ndarray) else part for name, part in x.items()}
    return to_tensor(x) if isinstance(x, np.ndarray) else x


def to_tensor(value: Any, name: str = "x") -> Tensor:
    """A tensor of these numbers: a tensor as it is, anything else copied, whatever its order in memory."""
    if isinstance(value, Tensor):
        return value
    try:
        if is_table(value):  # its columns may be in any order, and an array does not say in which
            raise TypeError
        array = np.asarray(value)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise DtypeError(
            f"expected {name} as numbers in a tensor or an array, got {got}{way_to_array(value, name)}"
        ) from error


def is_table(value: object) -> bool:
    """Whether this is a table with named columns, of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def way_to_array(value: object, name: str = "x") -> str:
    """How to give what is neither a tensor nor an array of numbers, as the end of a sentence."""
    if is_table(value):
        return ": give table[columns].to_numpy(), with the columns in the order that the model was fitted with"
    if hasattr(value, "toarray"):
        return f": give {name}.toarray()"
    if name == "y":
        return ": number the classes as the model's outputs, for example numpy.unique(y, return_inverse=True)[1]"
    return ""


def count(x: Inputs) -> int:
    """The number of rows in a batch."""
    return len(next(iter(tensors(x).values())))


def take(x: Inputs, rows: Tensor | slice) -> Inputs:
    """The chosen rows of a batch."""
    return {name: t[rows] for name, t in x.items()} if isinstance(x, Mapping) else x[rows]


def join(batches: Sequence[Inputs]) -> Inputs:
    """Batches of the same names, kinds and shapes as one; a single batch as it is."""
    if len(batches) == 1:
        return batches[0]
    named = [tensors(batch) for batch in batches]
    joined = {name: torch.cat([batch[name] for batch in named]) for name in named[0]}
    return joined if isinstance(batches[0], Mapping) else joined["x"]


def to(x: Inputs, device: torch.device) -> Inputs:
    """The batch on another device."""
    if isinstance(x, Mapping):
        return {name: t.to(device) for name, t in x.items()}
    return x if x.device == device else x.to(device)


def check(x: object, like: Inputs, span: tuple[float, float] | None = None, *, fixed: bool = False) -> Inputs:
    """`x` in the precision of `like`, or an error: it must have the same names, ranks, kinds and image sizes, be finite
    and not be empty.

    Integer inputs are token ids, whose length may vary, unless they are `fixed`; all else, bytes (uint8) too, must have
    the shape of the training data. Images must also keep to `span`, the smallest and the largest number in the training
    images.
    """
    if isinstance(like, Mapping):
        if not isinstance(x, Mapping) or set(x) != set(like):
            got = f"names {sorted(map(str, x))}" if isinstance(x, Mapping) else type(x).__name__
            raise DtypeError(f"expected named tensors {sorted(like)}, got {got}")
        checked = {name: _check_one(x[name], like[name], name, fixed=fixed) for name in like}
        if len({len(t) for t in checked.values()}) != 1:
            raise ShapeError(f"named tensors differ in rows: { {n: len(t) for n, t in checked.items()} }")
        return checked
    return _check_one(x, like, "x", span, fixed=fixed)


def check_ids(x: Inputs, bounds: tuple[int | None, int | None] | None) -> None:
    """Refuse token ids (named `input_ids`, or the only tensor) that a model cannot look up: on a GPU that is fatal.

    `bounds` are those of `queen.core.split.id_bounds`.
    """
    if bounds is None:
        return
    vocabulary, longest = bounds
    named = x.get("input_ids") if isinstance(x, Mapping) else x
    if named is None or not is_of_any_length(named):
        return
    low, high = (int(t) for t in named.aminmax())
    if low < 0 or (vocabulary is not None and high >= vocabulary):
        upper = "" if vocabulary is None else f" to {vocabulary - 1}"
        raise RangeError(f"expected token ids from 0{upper}, got {low} to {high}")
    if longest is not None and named.ndim > 1 and named.shape[1] > longest:
        raise ShapeError(f"expected at most {longest} tokens, got {named.shape[1]}")


def is_of_any_length(x: Tensor) -> bool:
    """Whether these are token ids, of which a row may have any number; floats and bytes have a fixed shape."""
    return not x.is_floating_point() and x.dtype != torch.uint8


def is_image(x: object) -> bool:
    """Whether this is a batch of images: (n, C, H, W) of floats or bytes."""
    return isinstance(x, Tensor) and x.ndim == 4 and (x.is_floating_point() or x.dtype == torch.uint8)


def is_finite(x: Tensor) -> bool:
    """Whether all numbers are finite; a finite sum proves it, and is far cheaper than a look at each of them."""
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def _kind(x: Tensor) -> str:
    if x.is_floating_point():
        return "float"
    return str(x.dtype) if x.is_complex() or x.dtype == torch.bool else "integer"


def _check_one(x: object, like: Tensor, name: str, span: tuple[float, float] | None = None, *, fixed: bool) -> Tensor:
    if not isinstance(x, Tensor):
        how = way_to_array(x) or ": use torch.as_tensor(...)"
        raise DtypeError(f"expected {name} to be a torch.Tensor, got {type(x).__name__}{how}")
    if _kind(x) != _kind(like):
        raise DtypeError(f"expected {name} of type {like.dtype}, got {x.dtype}: prepare it as the training data was")
    same = x.ndim == like.ndim and (x.shape[1:] == like.shape[1:] or (is_of_any_length(like) and not fixed))
    if not same:
        raise ShapeError(f"expected {name} of shape (n, {', '.join(map(str, like.shape[1:]))}), got {tuple(x.shape)}")
    if x.numel() == 0:
        raise EmptyBatchError(f"expected at least one row in {name}, got shape {tuple(x.shape)}")
    if like.dtype == torch.uint8 and x.dtype != torch.uint8 and not 0 <= int(x.min()) <= int(x.max()) <= 255:
        raise RangeError(f"expected {name} in bytes, from 0 to 255, got {int(x.min())} to {int(x.max())}")
    if x.dtype != like.dtype:
        x = x.to(like.dtype)  # before the next check: a float64 may overflow here
    if span is not None and _is_within(x, span):
        return x
    if x.is_floating_point() and not is_finite(x):
        raise NotFiniteError(
            f"expected finite numbers in {name}, got NaN or infinity: fill in missing values before, as for training"
        )
    if span is not None:
        low, high = span
        raise RangeError(
            f"expected {name} from {low:g} to {high:g} as in the fitted images, got {x.min():g} to {x.max():g}: "
            "prepare it as the training data was, or fit with input_range=None"
        )
    return x


def _is_within(x: Tensor, span: tuple[float, float]) -> bool:
    """Whether all numbers lie in the span widened by a twentieth on both sides, as resizing an image may do.

    A network's logits grow with its input, so an image of impossible contrast would look more typical than real ones.
    """
    (low, high), (least, most) = span, x.aminmax()
    margin = 0.05 * (high - low)
    return low - margin <= least.item() and most.item() <= high + margin  # False where there is a NaN
