"""Before the queue: no client takes all the room, all the threads or all the time of the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from queen.serve.limits.memory import MemoryAccount
from queen.serve.queue import admission as module
from queen.serve.queue.admission import MAX_CLIENT_PARSES, MAX_PARSES, MEDIUM_BYTES, Admission
from queen.serve.types import LARGE_BYTES, MANY_NUMBERS, ServeError


class Room:
    """As much of a batcher as admission asks: whether a client has room."""

    def __init__(self) -> None:
        self.full: set[str] = set()

    def check_room(self, client: str) -> None:
        if client in self.full:
            raise ServeError(503, "full", retry_after=1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.01)


def run(check, threads: int = 4, on_refusal=lambda client: None):
    room = Room()
    with ThreadPoolExecutor(threads) as pool:
        return asyncio.run(check(room, Admission(room, pool, MemoryAccount(1 << 20, 1 << 20), on_refusal=on_refusal)))


def test_who_has_room_is_let_in_and_who_has_none_waits_and_is_refused():
    async def check(room, admission):
        await admission.admit("polite")
        room.full.add("flood")
        with pytest.raises(ServeError) as error:
            await admission.admit("flood")
        assert (error.value.status, error.value.retry_after) == (503, 1)
        waiting = asyncio.ensure_future(admission.admit("flood"))
        await asyncio.sleep(0)
        room.full.clear()
        await waiting

    run(check)


@pytest.mark.parametrize("size", [1, MEDIUM_BYTES, LARGE_BYTES])
def test_a_request_without_room_is_not_parsed(size):
    async def check(room, admission):
        room.full.add("flood")
        with pytest.raises(ServeError):
            await admission.parse("flood", lambda: pytest.fail("parsed"), size)
        return await admission.parse("polite", lambda: "query", size)

    assert run(check) == "query"


def test_one_client_cannot_take_all_threads():
    free = threading.Event()

    async def check(room, admission):
        def read():
            free.wait(60)

        flood = [asyncio.ensure_future(admission.parse("flood", read, LARGE_BYTES)) for _ in range(3 * MAX_PARSES)]
        await asyncio.sleep(0)
        polite = await admission.parse("polite", lambda: "query", LARGE_BYTES)
        free.set()
        answers = await asyncio.gather(*flood, return_exceptions=True)
        return polite, [answer for answer in answers if answer is not None]

    polite, refused = run(check, threads=2)
    assert polite == "query"
    assert {error.status for error in refused} <= {503}


def test_a_client_may_have_so_many_large_requests_and_nobodys_first_is_refused():
    free, refused = threading.Event(), list[str]()

    async def check(room, admission):
        def flood(client, count):
            return [
                asyncio.ensure_future(admission.parse(client, lambda: free.wait(60), LARGE_BYTES)) for _ in range(count)
            ]

        first = flood("a", MAX_CLIENT_PARSES + 1)
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        assert "this client has 8 large requests" in str(first[-1].exception())
        second = flood("b", MAX_CLIENT_PARSES)
        third = flood("c", 2)  # her second finds as many as may wait
        await asyncio.wait(third, return_when=asyncio.FIRST_COMPLETED)
        assert "too many large requests at once" in str(third[1].exception())
        free.set()
        await asyncio.gather(*first[:-1], *second, third[0])
        assert not admission._parses
        assert refused == ["a", "c"]  # for the log, once each

    run(check, on_refusal=refused.append)


def test_medium_requests_of_one_client_leave_the_event_loop_to_others_in_between():
    order: list[str] = []

    async def check(room, admission):
        flood = [
            asyncio.ensure_future(admission.parse("flood", lambda: order.append("flood"), MEDIUM_BYTES))
            for _ in range(10)
        ]
        await asyncio.sleep(0)
        await admission.parse("polite", lambda: order.append("polite"), MEDIUM_BYTES)
        await asyncio.gather(*flood)

    run(check)
    assert order.index("polite") <= 2
    assert len(order) == 11


def test_a_large_answer_is_written_in_a_thread_when_there_is_memory_for_it():
    async def check(room, admission):
        small, large = [await admission.write("a", threading.current_thread, MANY_NUMBERS - more) for more in (1, 0)]
        assert small is threading.current_thread() is not large
        with admission._memory.reserve("b", 1 << 20):
            waiting = asyncio.ensure_future(admission.write("a", lambda: "written", 1 << 30))  # all that there is
            await asyncio.sleep(0.01)
            assert not waiting.done()
        assert await waiting == "written"
        assert admission._memory.total == 0

    run(check)
