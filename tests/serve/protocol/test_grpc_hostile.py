"""What nobody should send over gRPC: refused with a clear code."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import grpc
import pytest

from queen.serve.protocol import grpc_messages
from queen.serve.protocol.grpc_messages import read_message
from queen.serve.types import ServeError
from tests.support.grpc_hostile import HOSTILE
from tests.support.grpc_stub import CODE, KEY, MAX_BYTES, PATH, Stub, call, message, refused, talk
from tests.support.rest_bodies import DIGITS
from tests.support.waiting import PATIENCE


def test_hostile_messages_are_refused_and_the_next_is_answered() -> None:
    stub = Stub()

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        for name, request in HOSTILE.items():
            error = await refused(channel, "ModelInfer", request)
            assert error.code() in (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED), name
            assert 0 < len(error.details() or "") < 600, name
        assert await call(channel, "ModelInfer", message())

    talk(stub, client)
    assert len(stub.counted) == len(HOSTILE) + 1
    assert {status for status, _ in stub.counted[:-1]} == {400, 413}
    assert stub.counted[-1] == (200, True)


def test_a_message_of_many_parts_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_messages, "oip", None)  # parsed, its parts would take more than ten times its memory
    with pytest.raises(ServeError) as caught:
        read_message(b"\x2a\x00" * (4 << 20), DIGITS, max_rows=1)
    assert caught.value.status == 400


def test_sizes_compression_and_unknown_methods() -> None:
    async def client(channel: grpc.aio.Channel, port: int) -> None:
        size = len(message(id="").SerializeToString())
        assert size < MAX_BYTES
        exact = (
            message().SerializeToString() + b"\xfa\x3f" + _length(MAX_BYTES - len(message().SerializeToString()) - 5)
        )
        exact += bytes(MAX_BYTES - len(exact))  # a field that nobody knows
        assert len(exact) == MAX_BYTES
        assert await call(channel, "ModelInfer", exact)
        assert (await refused(channel, "ModelInfer", exact + b"\x00")).code() == CODE.RESOURCE_EXHAUSTED
        packed = await refused(channel, "ModelInfer", bytes(MAX_BYTES), compression=grpc.Compression.Gzip)
        assert packed.code() == CODE.UNIMPLEMENTED
        for method in ("RepositoryModelLoad", "RepositoryIndex", "ModelConfig", "modelinfer", ""):
            assert (await refused(channel, method)).code() == CODE.UNIMPLEMENTED
        reflection = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflection(b"")
        assert caught.value.code() == CODE.UNIMPLEMENTED
        head = await refused(channel, "ModelInfer", message(), key=(*KEY, ("x-long", "a" * 20_000)))
        assert head.code() == CODE.RESOURCE_EXHAUSTED

    talk(Stub(), client)


def _length(value: int) -> bytes:
    """A length in three bytes."""
    return bytes([value & 127 | 128, value >> 7 & 127 | 128, value >> 14])


def test_a_message_that_does_not_arrive_has_a_deadline_and_a_key_is_asked_for_first() -> None:
    stub = Stub()
    stub.settings.request_timeout = 0.3

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        stream = channel.stream_unary(PATH + "ModelInfer")
        for key, code in ((KEY, CODE.DEADLINE_EXCEEDED), (None, CODE.UNAUTHENTICATED)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream(metadata=key, timeout=PATIENCE)
            assert caught.value.code() == code

        async def nothing() -> Any:
            for _ in ():
                yield b""

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream(nothing(), metadata=KEY, timeout=PATIENCE)
        assert caught.value.code() == CODE.INVALID_ARGUMENT

    talk(stub, client)
    assert [status for status, _ in stub.counted] == [408, 401, 400]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _trickle(port: int) -> None:
    """Promise a long message, and send a byte now and then until the server ends the call."""
    head = {":method": "POST", ":scheme": "http", ":path": PATH + "ModelInfer", ":authority": "x", "te": "trailers"}
    head |= {"content-type": "application/grpc", "authorization": "Bearer good"}
    fields = b"".join(
        b"\x00" + bytes([len(key)]) + key.encode() + bytes([len(value)]) + value.encode() for key, value in head.items()
    )
    # Its own settings, and that it accepts the server's: else the server hangs up when it should cut off.
    settings_frames, ended = _frame(4, 0, 0, b"") + _frame(4, 1, 0, b""), threading.Event()
    with socket.create_connection(("127.0.0.1", port)) as wire, wire.makefile("rb") as replies:
        wire.settimeout(PATIENCE)
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frames + _frame(1, 4, 1, fields))
        wire.sendall(_frame(0, 0, 1, b"\x00" + (1000).to_bytes(4, "big")))

        def send() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(0.05):
                    wire.sendall(_frame(0, 0, 1, b"a"))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            while len(frame := replies.read(9)) == 9:
                replies.read(int.from_bytes(frame[:3], "big"))
                if frame[5:] == b"\x00\x00\x00\x01" and (frame[3] == 3 or frame[4] & 1):  # reset, or end of the stream
                    break
        finally:
            ended.set()
            sender.join()


def test_a_message_that_trickles_in_is_cut_off() -> None:
    stub = Stub()
    stub.settings.request_timeout = 0.3

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        await asyncio.to_thread(_trickle, port)

    talk(stub, client)
    assert stub.counted == [(408, True)]


def test_a_connection_that_says_nothing_is_closed() -> None:
    stub = Stub()
    stub.settings.request_timeout = 0.3

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.settimeout(PATIENCE)
            while await asyncio.to_thread(wire.recv, 1000):
                pass

    talk(stub, client)
