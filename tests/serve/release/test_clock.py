"""Answers leave at the ticks of a clock that knows nothing of them, at moments fixed when the requests came."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.serve.release.clock import ReleaseClock
from tests.support.waiting import PATIENCE, wait_for

HOURS = 10_000.0  # seconds between two ticks, so that a test can tick by hand
NOW = 0.0  # a moment long ago: whoever waits since then leaves at the next tick


@contextlib.contextmanager
def running(every: float = HOURS):
    clock = ReleaseClock(every)
    clock.start()
    yield clock
    clock.stop()


moments = st.floats(0, 1e6)


@given(moments, moments, st.floats(0.0005, 1))
def test_an_answer_takes_the_first_tick_that_is_late_enough_and_not_over(earliest, now, every):
    clock = ReleaseClock(every)  # whose tick 0 is at moment 0
    tick = clock.tick_for(earliest, now)
    close = 1e-6 * every  # of a rounded quotient
    assert tick * every > now - close
    assert tick * every >= earliest - close
    assert (tick - 1) * every <= max(earliest, now) + close


@given(moments, st.floats(0.0005, 1), st.floats(0, 1), st.floats(0, 1))
def test_when_an_answer_was_ready_does_not_show_if_it_was_in_time(arrived, hold, one, other):
    clock = ReleaseClock(0.25)
    ticks = {clock.tick_for(arrived + hold, arrived + share * hold * 0.999) for share in (one, other)}
    assert len(ticks) == 1


def test_those_who_wait_for_one_tick_leave_together():
    async def check():
        with running() as clock:
            early = asyncio.create_task(clock.wait(NOW))
            await asyncio.sleep(0)
            late = asyncio.create_task(clock.wait(NOW))
            far = asyncio.create_task(clock.wait(clock._origin + 1.5 * HOURS))
            await asyncio.sleep(0)
            assert set(clock._leaving) == {1, 2}
            clock._release(1)
            await asyncio.wait_for(asyncio.gather(early, late), PATIENCE)
            assert not far.done()
            clock._release(3)  # a tick may come late, and then stands for those that were missed
            await asyncio.wait_for(far, PATIENCE)

    asyncio.run(check())


def test_the_clock_ticks_by_itself_on_one_grid():
    async def check():
        with running(0.01) as clock:
            released, release = [], clock._release
            clock._release = lambda tick: (released.append(tick), release(tick))
            for ahead in (0.0, 0.05, 0.0):
                now = clock._origin + 0.01 * (released[-1] if released else 0)
                await asyncio.wait_for(clock.wait(now + ahead), PATIENCE)
            assert released == sorted(set(released))

    asyncio.run(check())


def test_the_clock_sleeps_while_nobody_waits():
    async def check():
        with running(0.001) as clock:
            assert not clock._wanted.is_set()
            for _ in range(3):
                await asyncio.wait_for(clock.wait(NOW), PATIENCE)
                assert not clock._wanted.is_set()

    asyncio.run(check())


def test_the_clock_stops_for_nobody_and_lets_everybody_go_at_its_end():
    async def check():
        with running() as clock:
            waiting = [asyncio.create_task(clock.wait(NOW)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.sleep(0.01)
            assert [one.done() for one in waiting] == [True, False, False]
            clock.stop()
            await asyncio.wait_for(asyncio.gather(*waiting[1:]), PATIENCE)
            await asyncio.wait_for(clock.wait(clock._origin + HOURS), PATIENCE)  # from now on nobody waits

    asyncio.run(check())
    wait_for(lambda: all(thread.name != "queen-ticks" for thread in threading.enumerate()))


@pytest.mark.parametrize("every", [0.0, 0.001])
def test_nobody_waits_without_a_clock(every):
    async def check():
        await asyncio.wait_for(ReleaseClock(every).wait(NOW), PATIENCE)  # which was never started
        with running(0.0) as clock:
            await asyncio.wait_for(clock.wait(clock._origin + HOURS), PATIENCE)

    asyncio.run(check())
