"""Reads the body of an inference request, JSON or JSON followed by raw tensors, into a `Query`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import orjson
from torch import Tensor

from queen.serve.protocol.number_lists import cut_lists, read_pieces
from queen.serve.protocol.tensors import check_names, check_shape, gather, read_list, read_raw, short
from queen.serve.types import LARGE_BYTES, OUTPUT, AnswerFormat, ModelSpec, Query, ServeError, TensorSpec

MAX_ID_LENGTH = 256
MAX_OTHER_VALUES = 1000  # values in a request besides the numbers of its tensors
HARMLESS = 1 << 20  # bytes of JSON that take little memory, whatever they hold
BYTES_PER_VALUE = 32  # of the largest body: with fewer for a number a request could take over four times that body
HEADER = "Inference-Header-Content-Length"


def read_query(
    body: bytes | bytearray,
    header_length: int | None,
    spec: ModelSpec,
    *,
    max_rows: int,
    max_values: int | None = None,
) -> Query:
    """A request's body as a query; its first `header_length` bytes are JSON, or all of them if None.

    `max_values` are the most values that the JSON may have: each is over ten times as large in memory as its text.
    """
    if header_length is not None and not 0 < header_length <= len(body):
        raise ServeError(400, f"{HEADER} must be from 1 to the length of the body, {len(body)}, got {header_length}")
    header = body if header_length is None else body[:header_length]
    _limit_values(header, spec, max_rows, max_values)
    text, lists = cut_lists(header) if len(header) >= LARGE_BYTES else (header, {})
    request = _parse(text)
    entries = _entries(request, "inputs")
    check_names([_name(entry, "inputs") for entry in entries], spec)
    raw = memoryview(body)[len(header) :]
    used = 0
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        tensor = spec.inputs_by_name[entry["name"]]
        size = _binary_size(entry, tensor, has_raw=header_length is not None)
        tensors[tensor.name] = _read_tensor(entry, tensor, raw[used:], size, lists, max_rows, max_values)
        used += size or 0
    if used != len(raw):
        raise ServeError(400, f"expected {used} bytes after the JSON as binary_data_size says, got {len(raw)}")
    inputs, rows = gather(tensors, spec)
    _refuse_repeated_keys(text, request)
    if lists:  # some were not for the model, and nobody has looked at them
        _parse(header)
    name = check_id(request.get("id"))
    if "parameters" not in request and "outputs" not in request:
        return Query(inputs, rows, name)
    partial = _flag(_parameters(request), "partial", False)
    return Query(inputs, rows, name, _answer_format(request), partial)


def check_id(value: object) -> str:
    """The client's name for the request, "" if it gave none."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_ID_LENGTH:
        raise ServeError(400, f"expected id as a string of at most {MAX_ID_LENGTH} characters, got {short(value)}")
    return value


def check_output(names: Sequence[object]) -> None:
    """Nothing can be asked for but the probabilities, once."""
    if list(names) not in ([], [OUTPUT]):
        raise ServeError(400, f"expected outputs ['{OUTPUT}'], got {short(list(names))}")


def check_classification(value: object) -> int:
    """How many of the best classes are asked for; 0 asks for all probabilities."""
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():  # to JSON, 3.0 is a whole number
        value = int(value)
    if type(value) is not int or value < 1:
        raise ServeError(400, f"expected classification as a whole number from 1, got {short(value)}")
    return value


def _parse(text: bytes | bytearray) -> dict[str, Any]:
    try:
        request = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ServeError(400, f"expected a JSON object: {str(error)[:200]}") from None
    if not isinstance(request, dict):
        raise ServeError(400, f"expected a JSON object, got {short(request)}")
    return request


def _limit_values(header: bytes | bytearray, spec: ModelSpec, max_rows: int, max_values: int | None) -> None:
    """Refuse more values than the largest request has: `[],` takes 3 bytes here and over 60 as a Python object."""
    if len(header) <= HARMLESS:
        return
    values = sum(map(header.count, (b",", b"[", b"{")))
    if max_values is not None and values > max_values:
        raise ServeError(413, f"expected at most {max_values} numbers in JSON, got {values}: send them as raw bytes")
    if any(-1 in tensor.shape[1:] for tensor in spec.inputs):
        return
    per_row = sum(1 + sum(accumulate(tensor.shape[1:], mul, initial=1)) for tensor in spec.inputs)
    if values > MAX_OTHER_VALUES + max_rows * per_row:
        raise ServeError(413, f"more values than {max_rows} rows can have: send several requests")


def _entries(request: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = request.get(key)
    if entries is None and key == "outputs":
        return []
    if not isinstance(entries, list) or not set(map(type, entries)) <= {dict}:
        raise ServeError(400, f"expected '{key}' as a list of objects, got {short(entries)}")
    return entries


def _name(entry: Mapping[str, Any], where: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str):
        raise ServeError(400, f"expected a name as a string in '{where}', got {short(name)}")
    return name


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise ServeError(400, f"expected parameters as an object, got {short(parameters)}")
    if "shared_memory_region" in parameters:
        raise ServeError(400, "shared memory is not supported: send the data in the request")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ServeError(400, f"expected {name} as true or false, got {short(value)}")
    return value


def _binary_size(entry: Mapping[str, Any], tensor: TensorSpec, *, has_raw: bool) -> int | None:
    """How many bytes of the input follow the JSON, or None if its numbers are in the JSON."""
    size = _parameters(entry).get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise ServeError(400, f"expected binary_data_size as a whole number, got {short(size)}")
    if "data" in entry:
        raise ServeError(400, f"input '{tensor.name}': expected data or binary_data_size, got both")
    if not has_raw:
        raise ServeError(400, f"input '{tensor.name}' has binary_data_size: the request needs the header {HEADER}")
    return size


def _read_tensor(
    entry: dict[str, Any],
    tensor: TensorSpec,
    raw: memoryview,
    size: int | None,
    lists: dict[str, bytes],
    max_rows: int,
    max_values: int | None,
) -> Tensor:
    """One input; its numbers are removed from the entry, so that later checks need not walk through them."""
    shape, datatype = check_shape(tensor, entry.get("shape"), max_rows=max_rows), entry.get("datatype")
    if size is None:
        if "data" not in entry:
            raise ServeError(400, f"input '{tensor.name}': expected data, or binary_data_size and bytes after the JSON")
        data, entry["data"] = entry["data"], None
        if isinstance(data, str) and data in lists:
            return read_pieces(tensor, datatype, shape, lists.pop(data))
        return read_list(tensor, datatype, shape, data)
    if size > len(raw):
        raise ServeError(400, f"input '{tensor.name}': binary_data_size is {size}, the body has {len(raw)} bytes left")
    return read_raw(tensor, datatype, shape, raw[:size], max_values=max_values)


def _answer_format(request: Mapping[str, Any]) -> AnswerFormat:
    default = _flag(_parameters(request), "binary_data_output", False)
    entries = _entries(request, "outputs")
    check_output([_name(entry, "outputs") for entry in entries])
    if not entries:
        return AnswerFormat(binary=default)
    parameters = _parameters(entries[0])
    binary = _flag(parameters, "binary_data", default)
    return AnswerFormat(binary=binary, classification=check_classification(parameters.get("classification")))


def _refuse_repeated_keys(header: bytes | bytearray, request: dict[str, Any]) -> None:
    """Refuse a key written twice: it means one thing to us, and perhaps another to a proxy before us.

    The parser silently keeps the last one, and a parser that notices would cost more than all the rest. So colons are
    counted: the text has as many as there are keys, and colons inside strings, unless a key was dropped.
    """
    if b"\\" not in header and _is_plain(header, request):
        return
    colons = visited = 0
    todo: list[Any] = [request]
    while todo:
        value = todo.pop()
        visited += 1
        if isinstance(value, dict):
            colons += len(value)
            todo.extend(value)
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
        elif isinstance(value, str):
            colons += value.count(":")
        if visited + len(todo) > MAX_OTHER_VALUES:
            raise ServeError(400, f"expected at most {MAX_OTHER_VALUES} values besides the tensors' numbers")
    has_escapes = b"\\" in header and b"\\u003a" in header.lower()
    if has_escapes or colons != header.count(b":"):
        raise ServeError(400, "a key is written twice in one object, or a colon as an escape")


def _is_plain(header: bytes | bytearray, request: dict[str, Any]) -> bool:
    """The same check, faster, which settles most requests: written again, this one is short and has as many colons."""
    try:
        again = orjson.dumps(request)
    except orjson.JSONEncodeError:  # nested too deeply
        return False
    return len(again) < MAX_OTHER_VALUES and again.count(b":") == header.count(b":")
