"""Requests to take apart, and models to ask."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from queen.serve.types import ModelSpec, TensorSpec

DIGITS = ModelSpec("digits", "1", (TensorSpec("input", "FP32", (-1, 1, 8, 8)),), 10)
TEXT = ModelSpec(
    "text", "3", (TensorSpec("input_ids", "INT64", (-1, -1)), TensorSpec("attention_mask", "INT64", (-1, -1))), 2
)
MAX_ROWS = 4


def pictures(rows: int = 1) -> NDArray[np.float32]:
    """Some rows for `DIGITS`, always the same."""
    return np.random.default_rng(0).random((rows, 1, 8, 8), dtype=np.float32)


def entry(**changes: Any) -> dict[str, Any]:
    """The only input of a good request, with changes; ... leaves a key out."""
    good = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": pictures().ravel().tolist()}
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


def ask(*entries: dict[str, Any], **changes: Any) -> bytes:
    """A request in JSON."""
    return orjson.dumps({"inputs": list(entries) or [entry()], **changes})


def ask_raw(raw: bytes, *, size: object = ..., **changes: Any) -> tuple[bytes, int]:
    """A request with raw bytes after the JSON, and the JSON's length."""
    parameters = {"binary_data_size": len(raw) if size is ... else size}
    head = ask(entry(data=..., parameters=parameters, **changes))
    return head + raw, len(head)


def growth(work: Callable[[], object]) -> int:
    """The most bytes that Python objects of the work took at a time: a count, the same on every machine."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
