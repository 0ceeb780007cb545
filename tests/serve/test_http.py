"""Sizes, deadlines and numbers of connections, on a real socket: what is too much is told, and costs nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import socket
import weakref

import pytest
from uvicorn.server import ServerState

from queen.serve.app import App
from queen.serve.run import uvicorn_config
from tests.support.http import body, head, read_answer, talk
from tests.support.server import served_in_thread

LIMIT = 64 * 1024


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    limits = {"max_body": LIMIT, "max_header": 4096, "request_timeout": 1.0, "max_connections": 120, "max_rows": 8}
    with served_in_thread(tmp_path_factory.mktemp("limits"), **limits) as server:
        yield server


def ask(served, *parts: bytes, pause: float = 0.0):
    status, headers, content = asyncio.run(talk(served.rest, *parts, pause=pause))
    return status, headers, json.loads(content)


def queries(served) -> int:
    return served.service.guard.ledger.standing("alice").queries


def padded(size: int) -> bytes:
    """A good request of exactly this many bytes."""
    plain = body()
    return plain + b" " * (size - len(plain))


def test_a_body_of_exactly_the_limit_is_answered_and_one_byte_more_is_not(served):
    before = queries(served)
    status, _, answered = ask(served, head(served.key, LIMIT), padded(LIMIT))
    assert status == 200
    assert answered["outputs"][0]["shape"] == [1, 10]
    status, headers, error = ask(served, head(served.key, LIMIT + 1), padded(LIMIT + 1))
    assert (status, list(error)) == (413, ["error"])
    assert "connection" not in headers  # hanging up now would reset the connection under a client that still sends
    assert queries(served) == before + 1


def chunk(part: bytes) -> bytes:
    return f"{len(part):x}\r\n".encode() + part + b"\r\n"


def test_a_body_without_a_length_is_cut_off_while_it_streams(served):
    start = head(served.key, None, "Transfer-Encoding: chunked")
    good = padded(LIMIT)
    status, _, _ = ask(served, start, *(chunk(good[i : i + 8192]) for i in range(0, LIMIT, 8192)), b"0\r\n\r\n")
    assert status == 200
    status, _, error = ask(served, start, *(chunk(b" " * 8192) for _ in range(LIMIT // 8192 + 1)), b"0\r\n\r\n")
    assert (status, list(error)) == (413, ["error"])


def test_a_body_in_very_many_chunks_is_read(served):
    start, plain = head(served.key, None, "Transfer-Encoding: chunked"), body()
    status, _, _ = ask(served, start, b"".join(chunk(plain[i : i + 1]) for i in range(len(plain))) + b"0\r\n\r\n")
    assert status == 200


def test_what_inflates_beyond_the_limit_is_refused(served):
    small = gzip.compress(padded(LIMIT))
    bomb = gzip.compress(b" " * (50 * LIMIT))
    status, _, _ = ask(served, head(served.key, len(small), "Content-Encoding: gzip"), small)
    assert status == 200
    status, _, error = ask(served, head(served.key, len(bomb), "Content-Encoding: gzip"), bomb)
    assert (status, list(error)) == (413, ["error"])


@pytest.mark.parametrize("where", ["header", "many headers", "url"])
def test_a_large_head_is_refused(served, where):
    extra = {
        "header": head(served.key, 0, "X-Long: " + "a" * 5000),
        "many headers": head(served.key, 0, *(f"X-{i}: a" for i in range(900))),
        "url": b"GET /v2/" + b"a" * 6000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    }[where]
    status, headers, error = ask(served, extra)
    assert (status, list(error)) == (431, ["error"])
    assert headers["connection"] == "close"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\x7f\x00 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_told_so(served, sent):
    status, _, error = ask(served, sent)
    assert 400 <= status < 500
    assert list(error) == ["error"]


async def slow_ones(served, start: bytes, trickle: bytes, count: int) -> int:
    """Many slow connections until the server has closed them all; the status that a quick client gets meanwhile."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.rest)
        writer.write(start)
        closed = asyncio.create_task(reader.read())
        while not (await asyncio.wait([closed], timeout=0.1))[0]:
            writer.write(trickle)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await closed

    async with asyncio.timeout(60):
        crowd = [asyncio.create_task(one()) for _ in range(count)]
        await asyncio.sleep(0.3)
        status, _, _ = await talk(served.rest, head(served.key, len(body())) + body())
        await asyncio.gather(*crowd)
    return status


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "trickling head", "trickling body"])
def test_slow_clients_are_shown_the_door_and_others_are_answered(served, kind):
    sent = {
        "silent": (b"", b""),
        "trickling head": (b"POST /v2 HTTP/1.1\r\nX-Long: ", b"a"),
        "trickling body": (head(served.key, 50_000), b" "),
    }
    before = queries(served)
    assert asyncio.run(slow_ones(served, *sent[kind], 50)) == 200
    assert queries(served) == before + 1


def test_silent_connections_make_room_for_others(served):
    """There are 30 places for one address: the oldest that wait are told to come later, and a new one is answered."""

    async def crowd():
        opened = [await asyncio.open_connection("127.0.0.1", served.rest) for _ in range(40)]
        first = await talk(served.rest, head(served.key, len(body())) + body())
        told = await asyncio.gather(*(read_answer(reader) for reader, _ in opened[:11]))
        for _, writer in opened:
            writer.close()
        return first, told

    answered, told = asyncio.run(crowd())
    assert answered[0] == 200
    assert [(status, headers["retry-after"]) for status, headers, _ in told] == [(503, "1")] * 11


def test_more_rows_than_allowed_are_refused(served):
    before = queries(served)
    assert ask(served, head(served.key, len(body(8))) + body(8))[0] == 200
    status, _, error = ask(served, head(served.key, len(body(9))) + body(9))
    assert status == 413
    assert "8" in error["error"]
    assert queries(served) == before + 8


def test_a_connection_serves_many_requests_and_pipelined_ones_in_order(served):
    async def many():
        reader, writer = await asyncio.open_connection("127.0.0.1", served.rest)
        last = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write((head(served.key, len(body())) + body()) * 3 + last)
        found = [await read_answer(reader) for _ in range(4)]
        writer.close()
        return found

    found = asyncio.run(many())
    assert [status for status, _, _ in found] == [200] * 4
    assert len({len(content) for _, _, content in found[:3]}) == 1
    assert json.loads(found[3][2]) == {"live": True}


def test_a_large_head_behind_another_request_is_refused_too(served):
    async def both():
        reader, writer = await asyncio.open_connection("127.0.0.1", served.rest)
        writer.write(head(served.key, len(body())) + body() + head(served.key, 0, "X-Long: " + "a" * 5000))
        answer = await reader.read()
        writer.close()
        return answer

    assert b"431 Request Header Fields Too Large" in asyncio.run(both())


def test_a_client_that_leaves_early_harms_nobody(served):
    async def leave():
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", served.rest)
            writer.write(head(served.key, len(body())) + body())
            await writer.drain()
            writer.close()

    asyncio.run(leave())
    assert ask(served, head(served.key, len(body())) + body())[0] == 200


class Wire(asyncio.Transport):
    """A connection that notes what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: asyncio.Queue[bytes] = asyncio.Queue()

    def write(self, data: bytes) -> None:
        self.written.put_nowait(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nobody else is there."""


def test_an_answer_leaves_in_one_packet(served):
    service = served.service

    async def speak() -> tuple[bytes, bool, bool]:
        config, wire = uvicorn_config(App(service), service.settings), Wire()
        connection = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
        connection.connection_made(wire)
        connection.data_received(head(served.key, len(body())) + body())
        first = await asyncio.wait_for(wire.written.get(), 60)
        await asyncio.sleep(0.05)
        gone = weakref.ref(connection.cycle)
        connection.connection_lost(None)
        is_all = wire.written.empty()
        gc.disable()
        try:
            del connection, wire
            return first, is_all, gone() is None
        finally:
            gc.enable()

    packet, is_all, is_gone = asyncio.run_coroutine_threadsafe(speak(), served.loop).result(60)
    before, _, found = packet.partition(b"\r\n\r\n")
    assert before.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ncontent-length: %d" % len(found) in before
    assert json.loads(found)["outputs"][0]["name"] == "probabilities"
    assert is_all
    assert is_gone  # with no help of the garbage collector


@pytest.mark.parametrize("line", ["Connection: close", None], ids=["close", "http10"])
def test_a_client_that_wants_one_answer_gets_it_and_the_end(served, line):
    sent = head(served.key, len(body()), *([line] if line else []))
    sent = sent if line else sent.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with socket.create_connection(("127.0.0.1", served.rest), timeout=60) as wire:
        wire.sendall(sent + body())
        with wire.makefile("rb") as answers:
            found = answers.read()
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in found
