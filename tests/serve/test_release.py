"""Answers leave at the ticks of a clock that knows nothing of them."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from queen.serve.release import ReleaseClock
from queen.serve.types import Caller, Query, ServeError
from tests.support.server import running_service
from tests.support.serving import digits

EVERY = 0.2


@contextlib.contextmanager
def running(every: float = EVERY):
    clock = ReleaseClock(every)
    clock.start()
    yield clock
    clock.stop()


async def left(clock: ReleaseClock, after: float) -> float:
    """When somebody left who came so many seconds from now."""
    await asyncio.sleep(after)
    await clock.wait()
    return time.monotonic()


def test_those_who_come_between_two_ticks_leave_at_one_moment():
    async def check():
        with running() as clock:
            begin = time.monotonic()
            early, late, next_one = await asyncio.gather(*(left(clock, s) for s in (0.0, 0.1, 0.25)))
        assert early == pytest.approx(late, abs=0.05)
        assert early - begin == pytest.approx(EVERY, abs=0.09)
        assert next_one - early == pytest.approx(EVERY, abs=0.09)

    asyncio.run(check())


def test_the_clock_stops_for_nobody_and_lets_everybody_go_at_its_end():
    async def check():
        with running(30.0) as clock:
            waiting = [asyncio.create_task(clock.wait()) for _ in range(3)]
            await asyncio.sleep(0.05)
            waiting[0].cancel()
            await asyncio.sleep(0)
            assert [one.done() for one in waiting] == [True, False, False]
            clock.stop()
            await asyncio.wait_for(asyncio.gather(*waiting[1:]), 1)
            await asyncio.wait_for(clock.wait(), 1)  # from now on nobody waits

    asyncio.run(check())


def test_nobody_waits_without_a_clock():
    async def check():
        with running(0.0) as clock:
            await asyncio.wait_for(clock.wait(), 1)

    asyncio.run(check())


def test_answers_and_refusals_of_a_server_leave_at_its_ticks(tmp_path):
    query = Query(digits()[:1], 1)

    async def check():
        async with running_service(tmp_path, release_every=0.5) as (one, _):
            ticks = []
            tick = one._release_clock._tick
            one._release_clock._tick = lambda: (ticks.append(time.monotonic()), tick())
            await asyncio.sleep(0.6)
            for refusing in (False, True):
                if refusing:
                    one.batcher.submit = refuse
                with contextlib.suppress(ServeError):
                    await one.infer(query, Caller("alice"))
                assert time.monotonic() - ticks[-1] < 0.25

    async def refuse(query, caller):
        raise ServeError(429, "no")

    asyncio.run(check())
