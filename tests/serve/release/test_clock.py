"""Answers leave at the ticks of a clock that knows nothing of them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import queen.serve.service
from queen.serve.release.clock import ReleaseClock
from queen.serve.types import Caller, Query, ServeError
from tests.support.server import running_service
from tests.support.serving import digits
from tests.support.waiting import PATIENCE

HOURS = 10_000.0  # seconds between two ticks, so that a test can tick by hand


@contextlib.contextmanager
def running(every: float = HOURS):
    clock = ReleaseClock(every)
    clock.start()
    yield clock
    clock.stop()


def test_those_who_come_between_two_ticks_leave_at_the_second():
    async def check():
        with running() as clock:
            early = asyncio.create_task(clock.wait())
            await asyncio.sleep(0)
            late = asyncio.create_task(clock.wait())
            await asyncio.sleep(0.05)
            assert not early.done()
            assert not late.done()
            clock._tick()
            next_one = asyncio.create_task(clock.wait())
            await asyncio.sleep(0.05)
            assert early.done()
            assert late.done()
            assert not next_one.done()
            clock._tick()
            await asyncio.wait_for(next_one, PATIENCE)

    asyncio.run(check())


def test_the_clock_ticks_by_itself():
    async def check():
        with running(0.01) as clock:
            for _ in range(3):
                await asyncio.wait_for(clock.wait(), PATIENCE)

    asyncio.run(check())


def test_the_clock_stops_for_nobody_and_lets_everybody_go_at_its_end():
    async def check():
        with running() as clock:
            waiting = [asyncio.create_task(clock.wait()) for _ in range(3)]
            await asyncio.sleep(0.05)
            waiting[0].cancel()
            await asyncio.sleep(0)
            assert [one.done() for one in waiting] == [True, False, False]
            clock.stop()
            await asyncio.wait_for(asyncio.gather(*waiting[1:]), PATIENCE)
            await asyncio.wait_for(clock.wait(), PATIENCE)  # from now on nobody waits

    asyncio.run(check())


def test_nobody_waits_without_a_clock():
    async def check():
        with running(0.0) as clock:
            await asyncio.wait_for(clock.wait(), PATIENCE)

    asyncio.run(check())


@pytest.mark.parametrize("refuses", [False, True])
def test_answers_and_refusals_of_a_server_leave_at_its_ticks(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr(queen.serve.service, "ReleaseClock", lambda every: ReleaseClock(HOURS))

    async def check():
        async with running_service(tmp_path, release_every=0.5) as (service, _):
            submit, ready = service.batcher.submit, asyncio.Event()

            async def answer(query, caller):
                try:
                    if refuses:
                        raise ServeError(429, "no")
                    return await submit(query, caller)
                finally:
                    ready.set()

            service.batcher.submit = answer
            leaving = asyncio.create_task(service.infer(Query(digits()[:1], 1), Caller("alice")))
            await ready.wait()
            await asyncio.sleep(0.1)  # without a clock it would leave now
            assert not leaving.done()
            service._release_clock._tick()
            await asyncio.wait([leaving])
            assert isinstance(leaving.exception(), ServeError) == refuses

    asyncio.run(asyncio.wait_for(check(), PATIENCE))
