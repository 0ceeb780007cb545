"""Bytes and connections on a real server: what is too much is refused, others are answered, and all is given back."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from qa.serving.withheld import GrpcSender, half_sent
from queen.serve import grpc
from queen.serve.grpc import GrpcCall
from queen.serve.limits import grpc_connections
from queen.serve.limits.bodies import memory_of_body
from queen.serve.limits.grpc_connections import GrpcConnections
from queen.serve.limits.memory import MemoryAccount
from queen.serve.network import TrustedProxies
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.types import ServeError
from tests.support.grpc_stub import MAX_BYTES, Stub, call, message
from tests.support.grpc_stub import talk as talk_grpc
from tests.support.http import body, head
from tests.support.server import ThreadServer, served_in_thread
from tests.support.waiting import PATIENCE, wait_for

KIB = 1024
LIMIT = 64 * KIB
SHARE = 3 * LIMIT  # room for one body of the limit, which takes a little more than twice that, but not for two
LIMITS = {"max_body": LIMIT, "max_client_bytes": SHARE, "max_bytes": 8 * LIMIT + 2 * SHARE, "request_timeout": 5.0}


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadServer]:
    with served_in_thread(tmp_path_factory.mktemp("bytes"), max_connections=40, **LIMITS) as server:
        server.new_key("bob")
        yield server


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, all bytes are given back in the end."""
    yield
    if "served" in request.fixturenames:
        service = request.getfixturevalue("served").service
        wait_for(lambda: (service.request_memory.total, service.parse_memory.total) == (0, 0))
        assert service.request_memory.by_client == {}


@contextlib.contextmanager
def connected(served: ThreadServer, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served.rest), PATIENCE, (source, 0)) as wire:
        yield wire


def answer(wire: socket.socket) -> tuple[int, bytes]:
    """Status and head of the next answer."""
    got = b""
    while b"\r\n\r\n" not in got and (more := wire.recv(KIB)):
        got += more
    return int(got.split()[1]), got


def padded(size: int = LIMIT) -> bytes:
    return body() + b" " * (size - len(body()))


def test_one_client_cannot_have_more_than_its_share_and_others_are_answered(served):
    bob, whole = served.new_key("bob"), padded()
    with connected(served) as first, connected(served) as second, connected(served) as third:
        first.sendall(head(served.key, LIMIT) + whole[:-1])
        wait_for(lambda: served.service.request_memory.by_client == {"alice": memory_of_body(LIMIT - 1)})
        second.sendall(head(served.key, LIMIT) + whole[:-1])
        status, told = answer(second)
        assert (status, b"retry-after: 1" in told) == (503, True)
        third.sendall(head(bob, LIMIT) + whole)
        assert answer(third)[0] == 200
        second.sendall(whole[-1:] + head(served.key, len(body())) + body())  # the refused body is thrown away
        assert answer(second)[0] == 200
        first.sendall(whole[-1:])
        assert answer(first)[0] == 200


def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_much(served):
    with connected(served) as first, connected(served) as second:
        first.sendall(head(served.key, LIMIT) + padded()[:-1])
        wait_for(lambda: served.service.request_memory.total == memory_of_body(LIMIT - 1))
        second.sendall(head(served.key, None, "Transfer-Encoding: chunked") + b"7000\r\n" + bytes(0x7000) + b"\r\n")
        assert answer(second)[0] == 503


def test_without_a_key_nothing_is_reserved(served):
    with connected(served) as wire:
        wire.sendall(head("qk_nobody", LIMIT) + padded()[:-1])
        assert answer(wire)[0] == 401
        assert served.service.request_memory.total == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (lambda key: head(key, len(body())) + body(), 200),
        (lambda key: head(key, 9) + b"{not json", 400),
        (lambda key: head(key, LIMIT + 1), 413),
        (lambda key: head(key, 4, "Content-Encoding: br") + b"abcd", 415),
        (lambda key: head(key, 30, "Content-Encoding: gzip") + gzip.compress(bytes(9)).ljust(30, b"\0"), 400),
        (lambda key: head(key, None, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n", 400),
        (lambda key: head(key, 100) + b"too slow", 408),
    ],
)
def test_whatever_the_answer_is_everything_is_given_back(served, sent, status):
    with connected(served) as wire:
        wire.sendall(sent(served.key))
        assert answer(wire)[0] == status


def test_what_a_client_leaves_behind_is_given_back(served):
    with connected(served) as wire:
        wire.sendall(head(served.key, LIMIT) + padded()[:-1])
        wait_for(lambda: served.service.request_memory.total > 0)


def test_a_request_that_fails_in_the_server_gives_everything_back(served, monkeypatch):
    async def fail(*args: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(served.service, "infer", fail)
    with connected(served) as wire:
        wire.sendall(head(served.key, len(body())) + body())
        assert answer(wire)[0] == 500


def test_large_bodies_before_an_answer_are_refused(served):
    """Requests that wait on a connection for those before them are not in the account, so they must be small."""
    with connected(served) as wire:
        small = head(served.key, len(body())) + body()
        wire.sendall(small + (head(served.key, LIMIT) + padded()) * 2)
        got = b""
        with contextlib.suppress(ConnectionResetError):  # it hangs up while there is more to read
            while more := wire.recv(1 << 16):
                got += more
    assert got.count(b"HTTP/1.1 200") <= 1


def test_half_sent_heads_keep_nobody_out(served):
    """40 places, 10 of them for one address."""
    with half_sent(served.rest, 60), connected(served, "127.0.0.2") as other, connected(served) as same:
        for wire in (other, same):
            wire.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer(wire)[0] == 200


def test_a_connection_that_is_being_answered_is_never_closed_for_others(served):
    whole = head(served.key, len(body())) + body()
    with connected(served) as wire:
        wire.sendall(whole[:-1])
        with half_sent(served.rest, 9):  # as many as fit beside it
            wire.sendall(whole[-1:])
            assert answer(wire)[0] == 200


def test_over_grpc_messages_of_one_client_wait_for_room():
    stub = Stub()
    stub.request_memory = MemoryAccount(1 << 30, (1 << 17) + 2 * memory_of_body(MAX_BYTES) - 1)  # one message at a time

    async def client(channel: object, port: int) -> None:
        first = GrpcSender(port, "good", MAX_BYTES)
        first.start()
        while first.sent < MAX_BYTES - 1:
            await asyncio.sleep(0.01)
        assert stub.request_memory.by_client["alice"] == (1 << 16) + memory_of_body(MAX_BYTES)
        second = GrpcSender(port, "good", MAX_BYTES)
        second.start()
        third = asyncio.create_task(call(channel, "ModelInfer", message(), oip.ModelInferResponse))
        while stub.request_memory.by_client["alice"] < 3 * (1 << 16) + memory_of_body(MAX_BYTES):
            await asyncio.sleep(0.01)
        assert second.sent < MAX_BYTES - 1  # the rest waits in the client
        for sender in (first, second):
            sender.wire.shutdown(socket.SHUT_RDWR)
        assert (await third).model_name == "digits"
        while stub.request_memory.total:
            await asyncio.sleep(0.01)

    talk_grpc(stub, client)


def test_over_grpc_a_client_that_goes_away_gives_its_bytes_back_when_the_server_has_done_with_them():
    stub, entered, leave = Stub(), asyncio.Event(), asyncio.Event()

    async def infer(query: object, caller: object) -> None:
        entered.set()
        await leave.wait()
        raise RuntimeError("nobody waits for this")

    stub.infer = infer  # type: ignore[method-assign,assignment]

    async def client(channel: object, port: int) -> None:
        task = asyncio.create_task(call(channel, "ModelInfer", message(), oip.ModelInferResponse))
        await entered.wait()
        task.cancel()
        while not stub.counted:
            await asyncio.sleep(0.01)
        assert stub.request_memory.total > 0
        leave.set()
        while stub.request_memory.total:
            await asyncio.sleep(0.01)

    talk_grpc(stub, client)


def read_message(stub: Stub, messages: AsyncIterator[bytes], *, wait_for_room: float, wait_for_message: float) -> int:
    """The status of a call that gets its memory, and then its message, after such shares of its time."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        clock, skipped = loop.time, 0.0
        loop.time = lambda: clock() + skipped * stub.settings.request_timeout  # type: ignore[method-assign]
        holder = stub.request_memory.reserve("bob", stub.request_memory.largest - grpc.WINDOW_BYTES)
        with stub.request_memory.reserve("alice") as reservation:
            task = asyncio.ensure_future(grpc._read(GrpcCall(messages, None), stub, reservation))  # type: ignore[arg-type]
            await asyncio.sleep(0.01)
            skipped += wait_for_room
            await asyncio.sleep(0.01)
            holder.close()
            await asyncio.sleep(0.01)
            skipped += wait_for_message
            await asyncio.sleep(0.01)
            assert task.done()
            error = task.exception()
        assert isinstance(error, ServeError)
        return error.status

    return asyncio.run(main())


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


@pytest.mark.parametrize(
    ("messages", "wait_for_room", "wait_for_message", "status"),
    [(never, 0.6, 0.6, 408), (never, 0.0, 1.1, 408), (nothing, 0.9, 0.0, 400), (nothing, 1.1, 0.0, 503)],
)
def test_a_call_has_one_deadline_for_its_memory_and_its_message(messages, wait_for_room, wait_for_message, status):
    stub = Stub(request_memory=MemoryAccount(1 << 22, 1 << 22))
    times = {"wait_for_room": wait_for_room, "wait_for_message": wait_for_message}
    assert read_message(stub, messages(), **times) == status


@pytest.mark.skipif(not grpc_connections.OPEN_FILES.exists(), reason="no /proc here")
def test_of_too_many_connections_of_one_address_the_silent_ones_are_shut_down():
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]

        def connect(source: str) -> socket.socket:
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0)))
            stack.enter_context(listener.accept()[0])
            return wire

        many, few = [connect("127.0.0.1") for _ in range(5)], [connect("127.0.0.2") for _ in range(2)]
        proxy = [connect("127.0.0.3") for _ in range(5)]
        watch = GrpcConnections(port, 100, 3, proxies=TrustedProxies(["127.0.0.3/32"]), note=lambda why, who: None)
        assert watch.close_some() == [("too many of one address", "127.0.0.1")] * 2
        assert [is_open(wire) for wire in few + proxy] == [True] * 7
        assert sum(map(is_open, many)) == 3


@pytest.mark.skipif(not grpc_connections.OPEN_FILES.exists() or not has_ipv6(), reason="no /proc or no IPv6 here")
@pytest.mark.parametrize(("network", "closed"), [("::1/128", 0), ("::2/128", 2)])
def test_a_proxy_over_grpc_is_known_by_its_whole_address(network, closed):
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        port = listener.getsockname()[1]
        for _ in range(5):
            stack.enter_context(socket.create_connection(("::1", port), PATIENCE))
            stack.enter_context(listener.accept()[0])
        watch = GrpcConnections(port, 100, 3, proxies=TrustedProxies([network]), note=lambda why, who: None)
        assert watch.close_some() == [("too many of one address", "::/64")] * closed


@pytest.mark.skipif(not grpc_connections.OPEN_FILES.exists(), reason="no /proc here")
def test_when_places_run_out_over_grpc_who_has_most_makes_room():
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        for source in ["127.0.0.1"] * 12 + ["127.0.0.2"] * 4:
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0)))
            stack.enter_context(listener.accept()[0])
        watch = GrpcConnections(port, 16, 16, proxies=TrustedProxies(), note=lambda why, who: None)
        assert watch.close_some() == [("too many in all", "127.0.0.1")] * 4
        assert watch.close_some() == []


def is_open(wire: socket.socket) -> bool:
    wire.setblocking(False)
    try:
        return wire.recv(1) != b""
    except BlockingIOError:
        return True
