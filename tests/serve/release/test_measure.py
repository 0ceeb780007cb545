"""How long requests take is measured like a client's first request, and leaves nothing behind."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

import queen.serve.release.measure
from queen.ledger import MemoryLedger
from queen.options import Group, Limits
from queen.serve.release.measure import JITTER, RECORD, WorkTime, measure_work
from queen.serve.unprotected import Unprotected
from tests.support.serving import small_guard


def measured(guard):
    return asyncio.run(measure_work(guard, uniform=True))


def test_the_time_of_a_request_grows_with_its_rows():
    work = measured(small_guard())
    assert 0 < work.median <= work.one_row <= JITTER * work.median
    assert work.each_more >= RECORD
    assert work.of(1) == work.one_row
    assert work.of(3) == work.one_row + 2 * work.each_more


def test_nothing_is_recorded_and_the_ledger_is_asked_to_write():
    class Counting(MemoryLedger):
        checks = 0

        def check(self):
            self.checks += 1

    guard = small_guard()
    guard.ledger = ledger = Counting()
    measured(guard)
    assert ledger.checks > 0
    assert list(guard.ledger.each_standing()) == []


def test_groups_and_refusals_are_measured_too():
    no_answers = Limits(threshold=0.0, extra_answers=0)  # every row is refused
    assert measured(small_guard(limits=no_answers, groups={"tenant": Group(limits=no_answers)})).median > 0
    assert measured(Unprotected(small_guard().bundle)).median > 0


def test_the_quietest_round_counts(monkeypatch):
    rounds = iter([WorkTime(0.01, 0.04, 0.001), WorkTime(0.001, 0.002, 0.0002), *[WorkTime(0.002, 0.008, 0.0001)] * 8])

    async def round_of(batcher, guard, number):
        return next(rounds)

    monkeypatch.setattr(queen.serve.release.measure, "_measure_round", round_of)
    assert measured(small_guard()) == WorkTime(0.001, 0.002, 0.0002)


@given(st.integers(1, 1024), st.integers(1, 1024))
def test_more_rows_never_take_less(rows, others):
    work = WorkTime(0.001, 0.002, 0.0003)
    assert (work.of(rows) <= work.of(others)) == (rows <= others)
