"""Answers and other replies as bytes.

Answers to requests of the same form all have the same length, whatever the probabilities: rounded ones are written with
all their decimals and no more, others with nine significant digits (enough to read the same float32 back) in 14
characters. Where class names differ in length, spaces make up for it: after the end of a JSON reply, and at the end of
each name where labels travel as raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from queen.serve.types import ModelSpec, Query, ServeError, TensorSpec

EXTENSIONS = ("binary_tensor_data", "classification")
PLATFORM = "queen"
ROWS_AT_A_TIME = 64


def write_answer(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> tuple[bytes, int | None]:
    """The reply's body for an answer (n, K), and the length of its JSON if raw bytes follow, else None."""
    check_answer(query, answer, spec)
    if query.answer_format.classification:
        return _write_labels(query, answer, spec)
    shape = b"%d,%d" % answer.shape
    if not query.answer_format.binary:
        return _head(query, spec, b"FP32", shape) + b'"data":[' + _numbers(answer, spec).encode() + b"]}]}", None
    raw = answer.tobytes()
    head = _head(query, spec, b"FP32", shape) + b'"parameters":{"binary_data_size":%d}}]}' % len(raw)
    return head + raw, len(head)


def clean(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """Answers (n, K) as little-endian float32 from 0 to 1, which all have the same width in text."""
    within = np.minimum(np.maximum(probabilities, 0), 1) + 0  # adding 0 turns -0 into 0
    return within.astype("<f4", copy=False)


def check_answer(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> None:
    """Raise `ServeError` unless the answer has one row per row of the query."""
    if answer.shape != (query.rows, spec.classes):
        raise ServeError(500, f"expected answers {(query.rows, spec.classes)}, got {answer.shape}")


def labels(answer: NDArray[np.float32], best: int, spec: ModelSpec) -> tuple[tuple[int, int], bytes]:
    """The shape (n, k) and bytes of the `best` classes of each row: "score:index" or "score:index:name".

    Each is preceded by its length in four bytes; names are padded with spaces to the length of the longest.
    """
    names = [b":" + name.encode() for name in spec.class_names or ()]
    longest = max(map(len, names), default=0)
    shape, pairs = _best(answer, best, spec)
    texts = [text.encode() + (names[index].ljust(longest) if names else b"") for text, index in pairs]
    return shape, b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _write_labels(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> tuple[bytes, int | None]:
    best = query.answer_format.classification
    if query.answer_format.binary:
        shape, raw = labels(answer, best, spec)
        head = _head(query, spec, b"BYTES", b"%d,%d" % shape) + b'"parameters":{"binary_data_size":%d}}]}' % len(raw)
        return head + raw, len(head)
    names = [b":" + orjson.dumps(name)[1:-1] for name in spec.class_names or ()]
    longest = max(map(len, names), default=0)
    shape, pairs = _best(answer, best, spec)
    texts = [text.encode() + (names[index] if names else b"") for text, index in pairs]
    spaces = sum(longest - len(names[index]) for _, index in pairs) if names else 0
    data = b'"data":["' + b'","'.join(texts) + b'"]}]}' + b" " * spaces
    return _head(query, spec, b"BYTES", b"%d,%d" % shape) + data, None


def _number(spec: ModelSpec) -> str:
    """How one probability is written, always in the same number of characters."""
    return "%.8e" if spec.digits is None else f"%.{spec.digits}f"


def _numbers(answer: NDArray[np.float32], spec: ModelSpec) -> str:
    """All probabilities as text, some rows at a time, so that other threads have their turn in between."""
    form, parts = _number(spec), range(0, len(answer), ROWS_AT_A_TIME)
    texts = (answer[i : i + ROWS_AT_A_TIME].ravel().tolist() for i in parts)
    return ",".join([",".join([form] * len(values)) % tuple(values) for values in texts])


def _best(answer: NDArray[np.float32], best: int, spec: ModelSpec) -> tuple[tuple[int, int], list[tuple[str, int]]]:
    """The shape (n, k), and each row's best classes as "score:index" and index, the best first, equal ones in order."""
    rows, classes = answer.shape
    order = np.argsort(-answer, axis=1, kind="stable")[:, :best]
    scores = np.take_along_axis(answer, order, axis=1)
    form = f"{_number(spec)}:%0{len(str(classes - 1))}d"
    pairs = zip(scores.ravel().tolist(), order.ravel().tolist(), strict=True)
    return (rows, order.shape[1]), [(form % (score, index), index) for score, index in pairs]


def _head(query: Query, spec: ModelSpec, datatype: bytes, shape: bytes) -> bytes:
    """A reply up to where the output's data or parameters begin."""
    request = b'"id":%b,' % orjson.dumps(query.id) if query.id else b""
    name, version = orjson.dumps(spec.name), orjson.dumps(spec.version)
    output = b'"outputs":[{"name":"probabilities","datatype":"%b","shape":[%b],' % (datatype, shape)
    return b'{"model_name":%b,"model_version":%b,%b%b' % (name, version, request, output)


def server_metadata(version: str) -> dict[str, object]:
    """What anyone may know of the server."""
    return {"name": "queen", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(spec: ModelSpec) -> dict[str, object]:
    """What clients may know of the model."""
    return {
        "name": spec.name,
        "versions": [spec.version],
        "platform": PLATFORM,
        "inputs": _tensors(spec.inputs),
        "outputs": _tensors([spec.output]),
    }


def _tensors(tensors: Sequence[TensorSpec]) -> list[dict[str, object]]:
    return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in tensors]


def to_json(content: object) -> bytes:
    """Any reply as JSON."""
    return orjson.dumps(content)


def error_body(message: str) -> bytes:
    """An error in the protocol's form; half of a surrogate pair, which is no text, becomes a question mark."""
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
