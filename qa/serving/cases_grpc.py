"""What nobody should send over gRPC: messages, and connections that break the rules of HTTP/2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qa.serving.h2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RESET,
    SETTINGS,
    WINDOW,
    call_fields,
    fields,
    frame,
    opened,
    packed,
    sent,
    start,
)
from tests.support.grpc_hostile import HOSTILE
from tests.support.grpc_stub import message

GOOD = message().SerializeToString()
FORGIVEN = ("content type of a page", "time-out of a nanosecond")  # the second may be recorded before its time is up
SPOILT = GOOD[:-1]  # refused also where gRPC forgives everything else


@dataclass(frozen=True)
class WireCase:
    """Bytes for a connection of their own; `waits` says that the server may rightly wait for more."""

    name: str
    text: bytes
    waits: bool = False


def messages() -> dict[str, bytes]:
    """Messages for ModelInfer, each to be refused."""
    return {
        name: case if isinstance(case, bytes) else case.SerializeToString()
        for name, case in HOSTILE.items()
    } | {
        "empty": b"",
        "another model": message(model_name="other").SerializeToString(),
        "another version": message(model_version="2").SerializeToString(),
        "10,000 letters of a name": message(model_name="a" * 10_000).SerializeToString(),
        "a field that nobody knows, cut": GOOD + b"\xfa\x3f\x7f",
    }  # fmt: skip


def wire_cases(key: str) -> list[WireCase]:
    """Connections to be refused, cut off, or left waiting; none may be answered."""
    return [*_connections(key), *_heads(key), *_lengths(key), *_floods(key)]


def _connections(key: str) -> Iterator[WireCase]:
    own = opened(call_fields(key))
    yield WireCase("nonsense", b"\x00\x01\x02" * 100)
    yield WireCase("HTTP/1.1", b"POST /inference.GRPCInferenceService/ModelInfer HTTP/1.1\r\nHost: x\r\n\r\n")
    yield WireCase("preface, cut", PREFACE[:10], waits=True)
    yield WireCase("no settings", PREFACE + own, waits=True)
    yield WireCase("settings of 5 bytes", PREFACE + frame(SETTINGS, 0, 0, b"\x00" * 5) + own)
    yield WireCase("settings on a stream", PREFACE + frame(SETTINGS, 0, 1) + own)
    yield WireCase("settings: window beyond 2^31", PREFACE + frame(SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff") + own)
    yield WireCase("settings: frames of 1 byte", PREFACE + frame(SETTINGS, 0, 0, b"\x00\x05\x00\x00\x00\x01") + own)
    yield WireCase("a frame of 16 MiB", start() + frame(DATA, 0, 1, b"", size=2**24 - 1) + b"a" * 100_000)
    yield WireCase("a frame that nobody knows", start() + frame(200, 255, 2**31 - 1, b"abc"), waits=True)
    yield WireCase("a message before its head", start() + sent(packed(GOOD)), waits=True)
    yield WireCase("stream 0", start() + opened(call_fields(key), 0), waits=True)
    yield WireCase("an even stream", start() + opened(call_fields(key), 2), waits=True)
    yield WireCase("the same stream twice", start() + own + own)
    yield WireCase("a promise", start() + frame(PUSH, END_HEADERS, 1, b"\x00\x00\x00\x02"), waits=True)
    yield WireCase("a ping of 7 bytes", start() + frame(PING, 0, 0, b"\x00" * 7))
    yield WireCase("farewell first", start() + frame(GOAWAY, 0, 0, b"\x00" * 8), waits=True)
    yield WireCase("a window of 0", start() + own + frame(WINDOW, 0, 1, b"\x00" * 4), waits=True)
    yield WireCase("a window beyond 2^31", start() + own + frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2, waits=True)
    yield WireCase("a stream of its own accord", start() + own + frame(PRIORITY, 0, 1, b"\x00\x00\x00\x01\xff"), True)


def _heads(key: str) -> Iterator[WireCase]:
    block = fields(call_fields(key))
    body = sent(packed(GOOD))
    yield WireCase("head: not compressed as it must be", start() + frame(HEADERS, 4, 1, b"\xff" * 50))
    yield WireCase("head: index that nobody knows", start() + frame(HEADERS, 4, 1, b"\xfe\xff\x00") + body)
    yield WireCase("head: number without end", start() + frame(HEADERS, 4, 1, b"\x7f" + b"\xff" * 100))
    yield WireCase("head: padding beyond the frame", start() + frame(HEADERS, 4 | 8, 1, b"\xff" + block))
    yield WireCase("head: half", start() + frame(HEADERS, 0, 1, block[:20]), waits=True)
    yield WireCase(
        "head: half, then something else", start() + frame(HEADERS, 0, 1, block) + frame(PING, 0, 0, b"a" * 8)
    )
    yield WireCase("head: continuation of nothing", start() + frame(CONTINUATION, END_HEADERS, 1, block))
    for name, values in {
        "GET": call_fields(key, _method="GET"),
        "no path": call_fields(key, _path=None),
        "empty path": call_fields(key, _path=""),
        "another service": call_fields(key, _path="/other.Service/ModelInfer"),
        "another method": call_fields(key, "RepositoryModelLoad"),
        "path that is not UTF-8": call_fields(key, _path="/inference.GRPCInferenceService/Model\xff"),
        "path of a file": call_fields(key, _path="/../../keys.json"),
        "path of 10,000 letters": call_fields(key, _path="/" + "a" * 10_000),
        "content type of a page": call_fields(key, content_type="text/html"),
        "time-out that is no number": call_fields(key, grpc_timeout="soon"),
        "time-out of a nanosecond": call_fields(key, grpc_timeout="1n"),
        "compressed": call_fields(key, grpc_encoding="gzip"),
        "compressed in a way that nobody knows": call_fields(key, grpc_encoding="zip"),
        "no key": call_fields(key, authorization=None),
        "bad key": call_fields("bad"),
        "key that is not ASCII": call_fields("\xff\xfe"),
        "upper case": call_fields(key, X_UPPER="a"),
        "20,000 letters": call_fields(key, x_long="a" * 20_000),
        "2,000 fields": call_fields(key, **{f"x_{i}": "a" for i in range(2000)}),
    }.items():
        large = len(fields(values)) > 16_000
        parts = fields(values)
        head = frame(HEADERS, END_HEADERS, 1, parts) if not large else frame(HEADERS, 0, 1, parts[:16_000])
        for i in range(16_000, len(parts), 16_000) if large else ():
            head += frame(CONTINUATION, END_HEADERS if i + 16_000 >= len(parts) else 0, 1, parts[i : i + 16_000])
        flag = "compressed" in name
        yield WireCase(f"head: {name}", start() + head + sent(packed(SPOILT if name in FORGIVEN else GOOD, flag=flag)))


def _lengths(key: str) -> Iterator[WireCase]:
    own = start() + opened(call_fields(key))
    yield WireCase("length: longer than the message", own + sent(packed(GOOD, length=len(GOOD) + 9)))
    yield WireCase("length: shorter than the message", own + sent(packed(GOOD, length=len(GOOD) - 9)))
    yield WireCase("length: 4 GiB", own + sent(packed(GOOD, length=2**32 - 1)))
    yield WireCase("length: 4 GiB, and no end", own + sent(packed(GOOD, length=2**32 - 1), flags=0))
    yield WireCase("length: cut in its middle", own + sent(b"\x00\x00\x00"))
    yield WireCase("length: of nothing", own + sent(b""))
    yield WireCase("a message that never ends", own + sent(packed(GOOD[:-1], length=len(GOOD)), flags=0))
    yield WireCase("a flag that nobody knows", own + sent(packed(GOOD, flag=0xFE)))
    yield WireCase("compressed without saying how", own + sent(packed(SPOILT, flag=1)))
    yield WireCase("padding beyond the frame", own + frame(DATA, END_STREAM | 8, 1, b"\xff" + packed(GOOD)))
    yield WireCase("no message and no end", own)


def _floods(key: str) -> Iterator[WireCase]:
    own = call_fields(key)
    block = fields(own)
    resets = (opened(own, 2 * i + 1) + frame(RESET, 0, 2 * i + 1, b"\x00\x00\x00\x08") for i in range(2000))
    yield WireCase("flood: 2,000 calls opened and given up", start() + b"".join(resets), waits=True)
    yield WireCase("flood: 20,000 pings", start() + frame(PING, 0, 0, b"abcdefgh") * 20_000)
    yield WireCase("flood: 20,000 settings", start() + frame(SETTINGS, 0, 0) * 20_000, waits=True)
    yield WireCase("flood: 5,000 empty messages", start() + opened(own) + frame(DATA, 0, 1) * 5000, waits=True)
    more = frame(CONTINUATION, 0, 1) * 5000
    yield WireCase("flood: 5,000 empty continuations", start() + frame(HEADERS, 0, 1, block) + more, waits=True)
    endless = frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 3000) * 20
    yield WireCase("flood: a head of 300 KB", start() + frame(HEADERS, 0, 1, block) + endless, waits=True)
    silent = b"".join(opened(own, 2 * i + 1) for i in range(300))
    yield WireCase("flood: 300 calls without messages", start() + silent, waits=True)
