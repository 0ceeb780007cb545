"""Frames of HTTP/2 by hand, to send what no gRPC client would."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from qa.serving.rest import HOST

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
PATH = "/inference.GRPCInferenceService/"


@dataclass(frozen=True)
class Heard:
    """What came back: the payloads of each stream, streams that ended, and whether the connection was closed."""

    replies: Mapping[int, bytes]
    ended: frozenset[int]
    closed: bool
    seconds: float


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", *, size: int | None = None) -> bytes:
    """One frame; `size` lets its length lie."""
    length = len(payload) if size is None else size
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def fields(values: Mapping[str, str]) -> bytes:
    """A header block, every field spelled out."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in values.items())


def call_fields(key: str, method: str = "ModelInfer", **changes: str | None) -> dict[str, str]:
    """The header of a call; None leaves a field out, and _ stands for - and a leading one for a colon."""
    plain = {":method": "POST", ":scheme": "http", ":path": PATH + method, ":authority": "x", "te": "trailers"}
    plain |= {"content-type": "application/grpc", "authorization": f"Bearer {key}"}
    own = {name.replace("_", ":", 1) if name[0] == "_" else name.replace("_", "-"): v for name, v in changes.items()}
    return {name: value for name, value in {**plain, **own}.items() if value is not None}


def start() -> bytes:
    """How every connection begins."""
    return PREFACE + frame(SETTINGS, 0, 0)


def opened(values: Mapping[str, str], stream: int = 1) -> bytes:
    """The header of a call as a frame."""
    return frame(HEADERS, END_HEADERS, stream, fields(values))


def packed(message: bytes, *, length: int | None = None, flag: int = 0) -> bytes:
    """A message with gRPC's five bytes in front, which may lie."""
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


def sent(message: bytes, stream: int = 1, flags: int = END_STREAM) -> bytes:
    """A message in frames that are not too large."""
    size = 16_000
    parts = [message[i : i + size] for i in range(0, len(message), size)] or [b""]
    return b"".join(frame(DATA, flags if i == len(parts) - 1 else 0, stream, part) for i, part in enumerate(parts))


def exchange(port: int, text: bytes, *, patience: float, awaited: int = 1, source: str = HOST) -> Heard:
    """Send bytes from an address, then listen until a stream has ended, the connection is closed, or patience is."""
    begin, replies, ended = time.monotonic(), dict[int, bytes](), set[int]()
    own = (source, 0)
    with socket.create_connection((HOST, port), patience, own) as wire, wire.makefile("rb") as back:
        closed = not _send(wire, text)
        try:
            while awaited not in ended:
                head = back.read(9)
                if len(head) < 9:
                    closed = True
                    break
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                payload = back.read(int.from_bytes(head[:3], "big"))
                if kind == DATA:
                    replies[stream] = replies.get(stream, b"") + payload
                if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    ended.add(stream)
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return Heard(replies, frozenset(ended), closed, time.monotonic() - begin)


def _send(wire: socket.socket, text: bytes) -> bool:
    """Whether all of it could be sent; the server may hang up before."""
    try:
        for i in range(0, len(text), 1 << 16):
            wire.sendall(text[i : i + (1 << 16)])
    except OSError:
        return False
    return True


def _text(value: str) -> bytes:
    raw = value.encode("latin-1")
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest, size = len(raw) - 127, b"\x7f"
    while rest >= 128:
        size += bytes([rest & 127 | 128])
        rest >>= 7
    return size + bytes([rest]) + raw
