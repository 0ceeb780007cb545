"""Reading pickles without running them: a file may hold numbers, text, lists, dicts and arrays of bytes only."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queen.bench.datasets.trees import DataError, reading


class _Array:
    """Stands in for numpy's arrays: takes their saved state apart without letting numpy act on it."""

    def __init__(self, *_: object) -> None:
        self.bytes: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, _Dtype) or kind.code not in ("u1", b"u1"):
            raise pickle.UnpicklingError("expected an array of bytes (uint8)")
        raw = raw if isinstance(raw, bytes) else raw.encode("latin1")
        self.bytes = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Dtype:
    """Stands in for numpy's dtype."""

    def __init__(self, code: str | bytes = "", *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass  # the byte order, of which bytes have none


class _Encoded:
    """Stands in for the function that Python 3 writes for bytes in the old protocol 2."""

    def __new__(cls, text: str, encoding: str = "latin1") -> bytes:  # type: ignore[misc]
        if encoding != "latin1":
            raise pickle.UnpicklingError("expected bytes as latin1")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        pass  # without it a pickle could set attributes of this class


STAND_INS: Mapping[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for '{module}.{name}', which no data set needs")
        return STAND_INS[module, name]


def read_pickle(data: bytes, name: str) -> dict[bytes, Any]:
    """The dict that a pickle holds, with keys as bytes, as Python 2 wrote text, and values that may be uint8 arrays."""
    with reading(name):
        content = _Reader(io.BytesIO(data), encoding="bytes").load()
    if not isinstance(content, dict):
        raise DataError(f"expected a dict in '{name}', got {type(content).__name__}")
    return {
        key.encode("latin1") if isinstance(key, str) else key: value.bytes if isinstance(value, _Array) else value
        for key, value in content.items()
    }
