"""Translates gRPC messages of the protocol into queries, and answers into messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from torch import Tensor

from queen.serve.protocol import oip_pb2 as oip
from queen.serve.protocol.rest_read import check_classification, check_id, check_output
from queen.serve.protocol.rest_write import EXTENSIONS, PLATFORM, check_answer, labels, split_refused
from queen.serve.protocol.tensors import check_names, check_shape, find_dtype, gather, read_raw, read_typed, short
from queen.serve.types import OUTPUT, REFUSED, AnswerFormat, ModelSpec, Query, ServeError, TensorSpec

CONTENTS: Mapping[str, str] = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
}
"""The field with the numbers of each datatype, if they do not come as raw bytes."""

MAX_PARTS = 1000  # fields of a request, those of its inputs and outputs included
INPUTS, OUTPUTS, RAW = 5, 6, 7  # numbers of a request's fields, the last ones that there are
SHAPE, NUMBERS = 3, 5  # and of an input's
WIDTHS = {6: 4, 7: 8}  # bytes of a number in the fields fp32_contents and fp64_contents; those of integers vary


def read_message(raw: bytes, spec: ModelSpec, *, max_rows: int, max_values: int | None = None) -> Query:
    """A serialized ModelInferRequest as a query; raises `ServeError`.

    `max_values` are the most numbers that may come typed: each is over ten times as large in memory.
    """
    _limit_values(raw, max_values)
    without_raw, raw_parts = _split_message(raw)
    try:
        message = oip.ModelInferRequest.FromString(without_raw)
    except DecodeError:
        raise ServeError(400, "the message is not a ModelInferRequest") from None
    check_model(spec, message.model_name, message.model_version)
    check_names([entry.name for entry in message.inputs], spec)
    by_name = {tensor.name: tensor for tensor in spec.inputs}
    tensors = {
        entry.name: _read_tensor(entry, by_name[entry.name], raw_part, max_rows, max_values)
        for entry, raw_part in zip(message.inputs, _match_raw_parts(message, raw_parts), strict=True)
    }
    inputs, rows = gather(tensors, spec)
    return Query(inputs, rows, check_id(message.id), _answer_format(message), _is_partial(message))


def write_message(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> oip.ModelInferResponse:
    """The answer (n, K) as raw bytes; answers to requests of the same form all have the same length."""
    check_answer(query, answer, spec)
    answer, refused = split_refused(answer)
    shape, raw, datatype = answer.shape, answer.tobytes(), "FP32"
    if query.answer_format.classification:
        (shape, raw), datatype = labels(answer, query.answer_format.classification, spec), "BYTES"
    make = oip.ModelInferResponse.InferOutputTensor
    response = oip.ModelInferResponse(
        model_name=spec.name,
        model_version=spec.version,
        id=query.id,
        outputs=[make(name=OUTPUT, datatype=datatype, shape=shape)],
        raw_output_contents=[raw],
    )
    if query.partial:
        response.outputs.append(make(name=REFUSED, datatype="BOOL", shape=refused.shape))
        response.raw_output_contents.append(refused.tobytes())
    return response


def server_message(version: str) -> oip.ServerMetadataResponse:
    """What anyone may know of the server."""
    return oip.ServerMetadataResponse(name="queen", version=version, extensions=EXTENSIONS)


def model_message(spec: ModelSpec) -> oip.ModelMetadataResponse:
    """What clients may know of the model."""
    return oip.ModelMetadataResponse(
        name=spec.name,
        versions=[spec.version],
        platform=PLATFORM,
        inputs=_tensors(spec.inputs),
        outputs=_tensors([spec.output]),
    )


def check_model(spec: ModelSpec, name: str, version: str) -> None:
    """Raise `ServeError` 404 unless this is the model's name; a client may leave its version open."""
    if name != spec.name or version not in ("", spec.version):
        wanted = f"{name} version {version}" if version else name
        raise ServeError(404, f"no model '{wanted[:100]}' here")


def _tensors(tensors: Iterable[TensorSpec]) -> list[oip.ModelMetadataResponse.TensorMetadata]:
    make = oip.ModelMetadataResponse.TensorMetadata
    return [make(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape) for tensor in tensors]


def _split_message(raw: bytes) -> tuple[bytes, list[memoryview]]:
    """The message without its raw tensors and without unknown fields; and the raw tensors, which are not copied."""
    rest, parts, at = bytearray(), list[memoryview](), 0
    for number, start, end in _fields(raw, 0, len(raw)):
        if number == RAW:
            parts.append(memoryview(raw)[start:end])
        elif number < RAW:
            rest += raw[at:end]
        at = end
    return bytes(rest), parts


def _match_raw_parts(message: oip.ModelInferRequest, raw: list[memoryview]) -> list[memoryview] | list[None]:
    """One entry per input: its raw bytes, or None if the message has typed numbers instead."""
    count = len(message.inputs)
    if not raw:
        return [None] * count
    if any(entry.HasField("contents") for entry in message.inputs):
        raise ServeError(400, "expected raw_input_contents or contents, got both")
    if len(raw) != count:
        raise ServeError(400, f"expected {count} raw_input_contents, one for each input, got {len(raw)}")
    return raw


def _read_tensor(
    entry: oip.ModelInferRequest.InferInputTensor,
    tensor: TensorSpec,
    raw: memoryview | None,
    max_rows: int,
    max_values: int | None,
) -> Tensor:
    _refuse_shared_memory(entry.parameters)
    shape = check_shape(tensor, list(entry.shape), max_rows=max_rows)
    if raw is not None:
        return read_raw(tensor, entry.datatype, shape, raw, max_values=max_values)
    find_dtype(tensor, entry.datatype)
    given = [field.name for field, _ in entry.contents.ListFields()]
    expected = CONTENTS.get(entry.datatype, "raw_input_contents")
    if given != [expected]:
        raise ServeError(400, f"input '{tensor.name}': expected {entry.datatype} in {expected}, got {given}")
    return read_typed(tensor, entry.datatype, shape, getattr(entry.contents, expected))


def _answer_format(message: oip.ModelInferRequest) -> AnswerFormat:
    check_output([entry.name for entry in message.outputs])
    if not message.outputs:
        return AnswerFormat(binary=True)
    parameters = message.outputs[0].parameters
    _refuse_shared_memory(parameters)
    best = _value(parameters["classification"]) if "classification" in parameters else None
    return AnswerFormat(binary=True, classification=check_classification(best))


def _is_partial(message: oip.ModelInferRequest) -> bool:
    value = _value(message.parameters["partial"]) if "partial" in message.parameters else False
    if not isinstance(value, bool):
        raise ServeError(400, f"expected partial as bool_param, got {short(value)}")
    return value


def _value(parameter: oip.InferParameter) -> object:
    chosen = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, chosen) if chosen else ""


def _refuse_shared_memory(parameters: Mapping[str, oip.InferParameter]) -> None:
    if "shared_memory_region" in parameters:
        raise ServeError(400, "shared memory is not supported: send the data in the request")


def _limit_values(raw: bytes, max_values: int | None) -> None:
    """Refuse more fields than requests have: an empty input takes two bytes here and over 80 in memory."""
    parts = values = 0
    try:
        for number, start, end in _fields(raw, 0, len(raw)):
            parts += 1
            for inner, begin, stop in _first_fields(raw, start, end) if number in (INPUTS, OUTPUTS) else ():
                parts += 1
                if number == INPUTS and inner == SHAPE:
                    values += stop - begin
                has_numbers = (number, inner) == (INPUTS, NUMBERS)
                for kind, first, last in _first_fields(raw, begin, stop) if has_numbers else ():
                    parts += 1
                    values += _count(raw, first, last, WIDTHS.get(kind))
            if parts > MAX_PARTS:
                raise ServeError(400, f"expected at most {MAX_PARTS} fields in a message")
    except (IndexError, ValueError):
        raise ServeError(400, "the message is not a ModelInferRequest") from None
    if max_values is not None and values > max_values:
        raise ServeError(413, f"expected at most {max_values} typed numbers, got {values}: send raw_input_contents")


def _first_fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message within a message, cut off where there are too many anyhow."""
    return islice(_fields(raw, at, end), MAX_PARTS)


def _count(raw: bytes, at: int, end: int, width: int | None) -> int:
    """How many numbers these bytes hold; the last byte of an integer is the one below 128."""
    if width is not None:
        return (end - at) // width
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8, end - at, at) < 128))


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a serialized message."""
    while at < end:
        tag, at = _varint(raw, at)
        kind, start = tag & 7, at
        if kind == 0:
            _, at = _varint(raw, at)
        elif kind == 2:
            size, start = _varint(raw, at)
            at = start + size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:  # groups, which this version of the language does not have
            raise ValueError(kind)
        if at > end:
            raise IndexError(at)
        yield tag >> 3, start, at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(at)
