"""Tensors as clients send them, in numbers or in raw bytes, checked against what the model takes.

Nothing here allocates more than a small multiple of what has arrived: sizes are compared before anything is copied.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.serve.types import INPUT, ModelSpec, ServeError, TensorSpec
from queen.types import Inputs

FLOATS: Mapping[str, str] = {"FP32": "<f4", "FP64": "<f8", "FP16": "<f2"}
INTEGERS: Mapping[str, str] = {
    "INT64": "<i8",
    "INT32": "<i4",
    "INT16": "<i2",
    "INT8": "<i1",
    "UINT64": "<u8",
    "UINT32": "<u4",
    "UINT16": "<u2",
    "UINT8": "<u1",
}
MAX_BYTE = 255
MAX_ID = np.iinfo(np.int64).max
RAW_FACTOR = 16  # raw numbers for each one that is allowed in text
SAFE = 1e38  # numbers whose Euclidean norm is below this are all finite in FP32


def short(value: object) -> str:
    """A value for an error message, however large it is."""
    text = reprlib.repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def check_names(names: Sequence[object], spec: ModelSpec) -> None:
    """Refuse a request that does not name each input of the model exactly once."""
    expected = spec.inputs_by_name
    if len(names) != len(expected) or set(names) != expected.keys():
        raise ServeError(400, f"expected inputs {list(expected)}, got {short(list(names))}")


def check_shape(tensor: TensorSpec, shape: object, *, max_rows: int) -> tuple[int, ...]:
    """The shape, if the model takes it."""
    if not isinstance(shape, list) or set(map(type, shape)) != {int}:
        raise ServeError(400, f"input '{tensor.name}': expected shape as a list of whole numbers, got {short(shape)}")
    fits = len(shape) == len(tensor.shape) and all(
        got > 0 if size == -1 else got == size for got, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise ServeError(
            400, f"input '{tensor.name}': expected shape {list(tensor.shape)} (-1: one or more), got {short(shape)}"
        )
    if shape[0] > max_rows:
        raise ServeError(
            413, f"expected at most {max_rows} rows in a request, got {short(shape[0])}: send several requests"
        )
    return tuple(shape)


def read_list(tensor: TensorSpec, datatype: object, shape: tuple[int, ...], data: object) -> Tensor:
    """A tensor from numbers in a flat list, or in lists nested like its shape."""
    kind = find_dtype(tensor, datatype)
    numbers = _flatten(tensor, data, shape)
    types = set(map(type, numbers))
    if not types <= ({int, float} if kind[1] == "f" else {int}):
        expected = "numbers" if kind[1] == "f" else "whole numbers from 0 to 2^63 - 1"
        raise ServeError(400, f"input '{tensor.name}': expected {expected} in data, got {_name_types(types)}")
    return read_typed(tensor, datatype, shape, numbers)


def read_typed(tensor: TensorSpec, datatype: object, shape: tuple[int, ...], numbers: Sequence[Any]) -> Tensor:
    """A tensor from values that are known to be numbers."""
    kind, count = find_dtype(tensor, datatype), _check_count(tensor, numbers, shape)
    try:
        if kind[1] == "f" and math.hypot(*numbers) < SAFE:
            return torch.from_numpy(np.array(numbers, np.float32).reshape(shape))
        array = np.fromiter(numbers, np.dtype(kind if kind[1] != "f" else "<f8"), count)
    except OverflowError:
        raise ServeError(400, f"input '{tensor.name}': a number in data does not fit in {datatype}") from None
    return _as_tensor(tensor, array, shape)


def _check_count(tensor: TensorSpec, numbers: Sequence[Any], shape: tuple[int, ...]) -> int:
    count = math.prod(shape)
    if len(numbers) != count:
        raise ServeError(
            400, f"input '{tensor.name}': expected {count} numbers for shape {list(shape)}, got {len(numbers)}"
        )
    return count


def read_raw(
    tensor: TensorSpec,
    datatype: object,
    shape: tuple[int, ...],
    raw: bytes | memoryview,
    *,
    max_values: int | None = None,
) -> Tensor:
    """A tensor from its bytes: little-endian, row by row.

    `max_values` are the most numbers that may come as text; raw ones may be 16 times as many. A token id may come in
    one byte and takes eight as a tensor.
    """
    kind = np.dtype(find_dtype(tensor, datatype))
    expected, most = math.prod(shape) * kind.itemsize, RAW_FACTOR * (max_values or math.prod(shape))
    if math.prod(shape) > most:
        raise ServeError(413, f"input '{tensor.name}': expected at most {most} numbers, got {math.prod(shape)}")
    if len(raw) != expected:
        raise ServeError(
            400, f"input '{tensor.name}': expected {expected} bytes for {datatype} {list(shape)}, got {len(raw)}"
        )
    return _as_tensor(tensor, np.frombuffer(raw, kind), shape)


def gather(tensors: Mapping[str, Tensor], spec: ModelSpec) -> tuple[Inputs, int]:
    """The batch as the model takes it, and its number of rows."""
    rows = {part.shape[0] for part in tensors.values()}
    if len(rows) != 1:
        raise ServeError(400, f"inputs differ in rows: { {name: len(part) for name, part in tensors.items()} }")
    names = spec.inputs_by_name
    single = len(names) == 1 and INPUT in names
    return (tensors[INPUT] if single else {name: tensors[name] for name in names}), rows.pop()


def find_dtype(tensor: TensorSpec, datatype: object) -> str:
    """numpy's name of the datatype, if the tensor may be sent in it."""
    known = FLOATS if tensor.datatype in FLOATS else INTEGERS
    kind = known.get(datatype) if isinstance(datatype, str) else None
    if kind is None:
        whole = "bytes from 0 to 255" if tensor.datatype == "UINT8" else "token ids"
        whole = whole if tensor.holds_ids or tensor.datatype == "UINT8" else "whole numbers"
        hint = ": send floats as the model was trained on" if known is FLOATS else f": send {whole}"
        raise ServeError(
            400, f"input '{tensor.name}': expected datatype {' or '.join(known)}, got {short(datatype)}{hint}"
        )
    return kind


def _flatten(tensor: TensorSpec, data: object, shape: tuple[int, ...]) -> list[Any]:
    if not isinstance(data, list):
        raise ServeError(400, f"input '{tensor.name}': expected data as a list, got {_name_types({type(data)})}")
    if not data or type(data[0]) is not list:
        return data
    level: list[Any] = [data]
    for size in shape:
        if set(map(type, level)) != {list} or set(map(len, level)) != {size}:
            raise ServeError(
                400, f"input '{tensor.name}': expected data flat or nested exactly like shape {list(shape)}"
            )
        level = list(chain.from_iterable(level))
    return level


def _name_types(types: set[type]) -> str:
    words = {str: "strings", bool: "booleans", type(None): "null", list: "lists", dict: "objects", float: "fractions"}
    return ", ".join(sorted(words.get(kind, kind.__name__) for kind in types - {int}))


def _as_tensor(tensor: TensorSpec, array: NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    """A copy in the model's precision: floats all finite, bytes to 255, whole numbers to 2^63 - 1, token ids from 0."""
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):  # what overflows is infinite, and refused
            floats = array.astype(np.float32)
        if not np.isfinite(floats).all():
            raise ServeError(400, f"input '{tensor.name}': expected finite numbers within the range of FP32")
        return torch.from_numpy(floats.reshape(shape))
    if tensor.datatype == "UINT8":
        if array.min() < 0 or array.max() > MAX_BYTE:
            raise ServeError(400, f"input '{tensor.name}': expected bytes from 0 to {MAX_BYTE}")
        return torch.from_numpy(array.astype(np.uint8).reshape(shape))
    if (tensor.holds_ids and array.min() < 0) or array.max() > MAX_ID:
        kind = "token ids from 0" if tensor.holds_ids else "whole numbers"
        raise ServeError(400, f"input '{tensor.name}': expected {kind} to 2^63 - 1")
    return torch.from_numpy(array.astype(np.int64).reshape(shape))
