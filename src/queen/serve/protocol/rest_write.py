"""Answers and other replies as bytes.

Answers to requests of the same form all have the same length, whatever the probabilities: rounded ones are written with
all their decimals and no more, others with nine significant digits (enough to read the same float32 back) in 14
characters. Where class names differ in length, spaces make up for it: after the end of a JSON reply, and at the end of
each name where labels travel as raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from queen.serve.protocol.pause import pause
from queen.serve.types import MANY_NUMBERS, OUTPUT, REFUSED, ModelSpec, Query, ServeError, TensorSpec

EXTENSIONS = ("binary_tensor_data", "classification")
PLATFORM = "queen"
ROWS_AT_A_TIME = 64


def write_answer(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> tuple[bytes, int | None]:
    """The reply's body for an answer (n, K), and the length of its JSON if raw bytes follow, else None.

    Rows that are NaN were refused: they are written as zeros, and a second output of a `partial` query marks them.
    """
    check_answer(query, answer, spec)
    form = query.answer_format
    if answer.size < MANY_NUMBERS and not (query.partial or form.binary or form.classification):  # as most are
        numbers = (_output_form(*answer.shape, spec.digits) % tuple(answer.ravel().tolist())).encode()
        return b"%b%b]}" % (_head(query, spec), numbers), None
    answer, refused = split_refused(answer)
    outputs = [(_write_labels if form.classification else _write_numbers)(query, answer, spec)]
    if query.partial:
        outputs.append(_write_refused(query, refused))
    json = _head(query, spec) + b",".join(output.json for output in outputs) + b"]}"
    json += b" " * sum(output.spaces for output in outputs)
    raw = b"".join(output.raw for output in outputs)
    return json + raw, len(json) if form.binary else None


class WrittenOutput(NamedTuple):
    """An output of a reply: JSON, raw bytes to come behind all JSON, and spaces that make up for its length."""

    json: bytes
    raw: bytes = b""
    spaces: int = 0


def _write_output(
    name: bytes, datatype: bytes, shape: bytes, *, data: bytes = b"", raw: bytes | None = None, spaces: int = 0
) -> WrittenOutput:
    """An output with its values in JSON, or with raw bytes instead."""
    values = b'"data":[%b]' % data if raw is None else b'"parameters":{"binary_data_size":%d}' % len(raw)
    json = b'{"name":"%b","datatype":"%b","shape":[%b],%b}' % (name, datatype, shape, values)
    return WrittenOutput(json, raw or b"", spaces)


def _write_numbers(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> WrittenOutput:
    name, shape = OUTPUT.encode(), b"%d,%d" % answer.shape
    if query.answer_format.binary:
        return _write_output(name, b"FP32", shape, raw=answer.tobytes())
    return _write_output(name, b"FP32", shape, data=_numbers(answer, spec).encode())


def _write_refused(query: Query, refused: NDArray[np.bool_]) -> WrittenOutput:
    """Which rows were refused; "true" is shorter than "false"."""
    name, shape = REFUSED.encode(), b"%d" % len(refused)
    if query.answer_format.binary:
        return _write_output(name, b"BOOL", shape, raw=refused.tobytes())
    flags = b",".join([b"true" if one else b"false" for one in refused.tolist()])
    return _write_output(name, b"BOOL", shape, data=flags, spaces=int(refused.sum()))


def split_refused(answer: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The answer with zeros in its refused rows, which are NaN, and which these are (n,)."""
    refused = np.isnan(answer[:, 0])
    return (np.where(refused[:, None], np.float32(0), answer) if refused.any() else answer), refused


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


def _write_labels(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> WrittenOutput:
    name, best = OUTPUT.encode(), query.answer_format.classification
    if query.answer_format.binary:
        shape, raw = labels(answer, best, spec)
        return _write_output(name, b"BYTES", b"%d,%d" % shape, raw=raw)
    names = [b":" + orjson.dumps(name)[1:-1] for name in spec.class_names or ()]
    longest = max(map(len, names), default=0)
    shape, pairs = _best(answer, best, spec)
    texts = [b'"%b%b"' % (text.encode(), names[index] if names else b"") for text, index in pairs]
    spaces = sum(longest - len(names[index]) for _, index in pairs) if names else 0
    return _write_output(name, b"BYTES", b"%d,%d" % shape, data=b",".join(texts), spaces=spaces)


@lru_cache(maxsize=64)
def _output_form(rows: int, classes: int, digits: int | None) -> str:
    """A whole output of so many rows, with a place for each probability."""
    data = ",".join([_number(digits)] * (rows * classes)).encode()
    return _write_output(OUTPUT.encode(), b"FP32", b"%d,%d" % (rows, classes), data=data).json.decode()


def _number(digits: int | None) -> str:
    """How one probability is written, always in the same number of characters."""
    return "%.8e" if digits is None else f"%.{digits}f"


def _numbers(answer: NDArray[np.float32], spec: ModelSpec) -> str:
    """All probabilities as text; many of them some rows at a time, so that other threads have their turn in between."""
    form, texts = _number(spec.digits), list[str]()
    for start in range(0, len(answer), ROWS_AT_A_TIME):
        values = answer[start : start + ROWS_AT_A_TIME].ravel().tolist()
        texts.append(",".join([form] * len(values)) % tuple(values))
        if answer.size >= MANY_NUMBERS:
            pause()
    return ",".join(texts)


def _best(answer: NDArray[np.float32], best: int, spec: ModelSpec) -> tuple[tuple[int, int], list[tuple[str, int]]]:
    """The shape (n, k), and each row's best classes as "score:index" and index, the best first, equal ones in order."""
    rows, classes = answer.shape
    order = np.argsort(-answer, axis=1, kind="stable")[:, :best]
    scores = np.take_along_axis(answer, order, axis=1)
    form = f"{_number(spec.digits)}:%0{len(str(classes - 1))}d"
    pairs = zip(scores.ravel().tolist(), order.ravel().tolist(), strict=True)
    return (rows, order.shape[1]), [(form % (score, index), index) for score, index in pairs]


def _head(query: Query, spec: ModelSpec) -> bytes:
    """A reply up to its outputs."""
    request = b'"id":%b,' % orjson.dumps(query.id) if query.id else b""
    return b'%b%b"outputs":[' % (_model_fields(spec.name, spec.version), request)


@lru_cache(maxsize=1)
def _model_fields(name: str, version: str) -> bytes:
    return b'{"model_name":%b,"model_version":%b,' % (orjson.dumps(name), orjson.dumps(version))


def server_metadata(version: str) -> dict[str, object]:
    """What anyone may know of the server."""
    return {"name": "queen", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(spec: ModelSpec) -> dict[str, object]:
    """What clients may know of the model; its classes by name, in their order, if they have names."""
    names: dict[str, object] = {"parameters": {"class_names": list(spec.class_names)}} if spec.class_names else {}
    return {
        "name": spec.name,
        "versions": [spec.version],
        "platform": PLATFORM,
        "inputs": _tensors(spec.inputs),
        "outputs": _tensors([spec.output]),
        **names,
    }


def _tensors(tensors: Sequence[TensorSpec]) -> list[dict[str, object]]:
    return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in tensors]


def to_json(content: object) -> bytes:
    """Any reply as JSON."""
    return orjson.dumps(content)


def error_body(message: str, rows: Sequence[int] = ()) -> bytes:
    """An error in the protocol's form, and the rows that it is about if it is not about all.

    Half of a surrogate pair, which is no text, becomes a question mark.
    """
    content: dict[str, object] = {"error": message.encode("utf-8", "replace").decode()}
    return orjson.dumps(content | ({"rows": list(rows)} if rows else {}))
