"""One file of the query log: a JSON line, then records, each with its length and checksum. docs/query-log.md says more.

Every record begins with a marker that is drawn at random for each file. After damage the reader looks for the next
marker. Clients cannot know it, so no query can pass bytes in its own tensor off as a record of somebody else.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from queen.core import inputs
from queen.errors import OptionError
from queen.serve.types import DATATYPES
from queen.types import Inputs

FORMAT, VERSION = "queen-query-log", 1
MARKER_BYTES = 8
LENGTH, CHECKSUM = struct.Struct("<I"), struct.Struct("<I")
PREFIX = MARKER_BYTES + LENGTH.size + CHECKSUM.size
MAX_HEADER = 4096
TYPES: Mapping[str, torch.dtype] = {**DATATYPES, "BF16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in TYPES.items()}


@dataclass(frozen=True)
class LoggedRequest:
    """One recorded request: when it came (Unix seconds), who sent it, and its batch."""

    at: float
    client: str
    groups: tuple[str, ...]
    inputs: Inputs


@dataclass(frozen=True)
class Damage:
    """A place in a file where no record can be read: it was cut off by a crash, or changed."""

    path: Path
    offset: int
    reason: str


def make_header(marker: bytes, created: float) -> bytes:
    """The first line of a file."""
    content = {"format": FORMAT, "version": VERSION, "created": created, "marker": marker.hex()}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def encode(request: LoggedRequest, marker: bytes, *, compress: bool) -> bytes:
    """The bytes of a record."""
    single = not isinstance(request.inputs, Mapping)
    parts = {name: t.detach().cpu().contiguous() for name, t in inputs.tensors(request.inputs).items()}
    body = b"".join(_bytes_of(t) for t in parts.values())
    packed = zlib.compress(body, 1) if compress else body
    is_packed = len(packed) < len(body)
    head = {
        "at": request.at,
        "client": request.client,
        "groups": request.groups,
        "tensors": [[None if single else name, NAMES[t.dtype], list(t.shape)] for name, t in parts.items()],
        "zlib": is_packed,
    }
    payload = json.dumps(head, separators=(",", ":")).encode() + b"\n" + (packed if is_packed else body)
    length = LENGTH.pack(len(payload))
    return b"".join((marker, length, CHECKSUM.pack(_checksum(length, payload)), payload))


def check_inputs(batch: Inputs) -> int:
    """The size of a batch in bytes; raises `OptionError` if it cannot be recorded."""
    parts = inputs.tensors(batch).values()
    for tensor in parts:
        if tensor.dtype not in NAMES:
            raise OptionError(f"cannot record tensors of type {tensor.dtype}; known: {', '.join(TYPES)}")
    return sum(t.numel() * t.element_size() for t in parts)


def read_segment(
    path: Path, on_damage: Callable[[Damage], None], *, since: float = -math.inf, until: float = math.inf
) -> Iterator[LoggedRequest]:
    """The records of one file that were made from `since` to before `until`, in the order they were written.

    Damage is reported and skipped: every request that is returned passed its checksum.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # deleted by retention since the folder was listed
        return
    except OSError as error:
        raise OptionError(f"cannot read '{path}': {error.strerror}") from error
    marker, offset = _read_header(data)
    if marker is None:
        on_damage(Damage(path, 0, "the header is damaged, cut off or of another version"))
        return
    while offset < len(data):
        try:
            payload = _read_payload(data, offset, marker)
            request = _decode(payload, since, until)
        except (ValueError, KeyError, TypeError, RuntimeError, zlib.error) as error:
            following = data.find(marker, offset + 1)
            reason = str(error) if following >= 0 else "the last record is cut off or damaged"
            on_damage(Damage(path, offset, reason))
            offset = following if following >= 0 else len(data)
            continue
        offset += PREFIX + len(payload)
        if request is not None:
            yield request


def _read_header(data: bytes) -> tuple[bytes | None, int]:
    """The marker, and the offset of the first record; (None, 0) if the header cannot be read."""
    line, end, _ = data[:MAX_HEADER].partition(b"\n")
    try:
        content = json.loads(line)
        marker = bytes.fromhex(content["marker"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, 0
    known = (content.get("format"), content.get("version")) == (FORMAT, VERSION)
    return (marker, len(line) + 1) if known and end and len(marker) == MARKER_BYTES else (None, 0)


def _read_payload(data: bytes, offset: int, marker: bytes) -> bytes:
    start = offset + PREFIX
    prefix = data[offset:start]
    if len(prefix) < PREFIX or not prefix.startswith(marker):
        raise ValueError("no record begins here")
    length = prefix[MARKER_BYTES : MARKER_BYTES + LENGTH.size]
    size, checksum = LENGTH.unpack(length)[0], CHECKSUM.unpack(prefix[-CHECKSUM.size :])[0]
    payload = data[start : start + size]
    if len(payload) != size or _checksum(length, payload) != checksum:
        raise ValueError("a record does not match its checksum")
    return payload


def _decode(payload: bytes, since: float, until: float) -> LoggedRequest | None:
    """The recorded request, or None if it was made at another time."""
    line, _, body = payload.partition(b"\n")
    head = json.loads(line)
    if not since <= head["at"] < until:
        return None
    shapes = [(name, TYPES[kind], tuple(shape)) for name, kind, shape in head["tensors"]]
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes]
    if head["zlib"]:
        body = zlib.decompressobj().decompress(body, sum(sizes) + 1)
    if len(body) != sum(sizes) or not shapes:
        raise ValueError("a record does not hold as many bytes as its tensors have")
    tensors: dict[str | None, Tensor] = {}
    start = 0
    for (name, dtype, shape), size in zip(shapes, sizes, strict=True):
        tensors[name] = _tensor_of(body[start : start + size], dtype, shape)
        start += size
    batch: Any = tensors.get(None, tensors)  # a single tensor has no name
    return LoggedRequest(head["at"], head["client"], tuple(head["groups"]), batch)


def _bytes_of(t: Tensor) -> bytes:
    return t.reshape(-1).view(torch.uint8).numpy().tobytes()


def _tensor_of(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _checksum(length: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(length))
