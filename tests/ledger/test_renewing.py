"""Budgets that renew: all stores agree with the reference, and nobody gains a renewal by a restart or a clock."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.ledger import Budget, Ledger, MemoryLedger, SqliteLedger
from queen.options import Group, Limits
from tests.reference.watch import Rules, Watcher
from tests.reference.windows import window
from tests.support.points import cut, cuts_of
from tests.support.queries import (
    NAMES,
    album_of,
    events,
    judge,
    moved,
    operate,
    operation_of,
    outcomes,
    pictures,
    queries_of,
    rules_of,
    sends_of,
    standings,
    variants_of,
)
from tests.support.times import MIDNIGHT, SetTime, TwoClocks, at_set_time, redis_time

HOUR, DAY, WEEK = 3600, 86400, 7 * 86400
FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # a disk would wait for every commit
THRESHOLDS = ["0.01/hour", "0.1/day", "0.05/week", "0.0/day", "0.2/month", 0.1]
EXTRAS = ["1/hour", "3/day", "2/week", "0/day", "5/month", 2, 1000]
limits_of = st.builds(
    lambda radius, threshold, extra: Limits(radius=radius, threshold=threshold, extra_answers=extra),
    st.sampled_from([0.1, 0.5, 2.0]),
    st.sampled_from(THRESHOLDS),
    st.sampled_from(EXTRAS),
)
step_of = st.sampled_from([0, 1, 1800, HOUR, DAY, WEEK, 40 * DAY, DAY - 1, -1, -HOUR, -DAY, -9 * DAY])
budget_of = st.none() | st.builds(
    lambda threshold, extra: Budget(threshold=threshold, extra_answers=extra),
    st.none() | st.sampled_from(THRESHOLDS),
    st.none() | st.sampled_from(EXTRAS),
)


@st.composite
def renewing_rules_of(draw) -> Rules:
    """As `rules_of`, under limits that mostly renew."""
    rules = draw(rules_of())
    made: dict[str, Group] = {}
    for groups in rules.groups.values():
        for name, group in groups.items():
            made.setdefault(name, replace(group, limits=draw(limits_of)))
    groups = {client: {name: made[name] for name in of} for client, of in rules.groups.items()}
    return replace(rules, limits=draw(limits_of), groups=groups)


chapter_of = st.tuples(
    renewing_rules_of(), sends_of, cuts_of, st.lists(step_of, min_size=1, max_size=4), operation_of, budget_of,
    st.booleans(), st.integers(0, 2),
)  # fmt: skip


@pytest.mark.real
@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(album=album_of, chapters=st.lists(chapter_of, min_size=2, max_size=5))
def test_all_stores_equal_the_reference_while_time_periods_and_processes_change(album, chapters):
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
        set_redis, clock = stack.enter_context(redis_time()), SetTime()
        set_redis(MIDNIGHT)
        stores = {name: stack.enter_context(closing(one)) for name, one in at_set_time(clock, Path(folder)).items()}
        watcher = Watcher(chapters[0][0])
        for rules, sends, sizes, steps, operation, budget, restarts, moves in chapters:
            watcher.rules = moved(rules, rules.test, moves)
            queries = queries_of(sends, variants_of(album, rules.limits))
            for i, part in enumerate(cut(len(queries), sizes)):
                watcher.now += steps[i % len(steps)] + (MIDNIGHT if watcher.now == 0 else 0)
                clock.set(watcher.now)
                set_redis(watcher.now)
                expected, denials = [], {}
                for row, query in enumerate(queries[part]):
                    expected.append(watcher.ask(query))
                    if watcher.denial:
                        denials[row] = watcher.denial
                for name, store in stores.items():
                    judgement = judge(store.ledger, watcher.rules, queries[part])
                    assert outcomes(judgement) == expected, name
                    assert {row: astuple(denial) for row, denial in judgement.denials.items()} == denials, name
                    assert store.ledger.now() == watcher.now
            for on in (watcher, *(store.ledger for store in stores.values())):
                operate(on, *operation)
                on.set_budget(NAMES[moves], budget, "op")
            if restarts:
                for store in stores.values():
                    store.restart()
        for name, store in stores.items():
            assert standings(store.ledger) == watcher.standings(), name
            assert events(store.ledger) == watcher.events, name


def answered(ledger: Ledger, limits: Limits, count: int, start: int, client: str = "a") -> int:
    """How many of so many new pictures outside all discs are answered."""
    judgement = judge(ledger, Rules(limits), pictures(count, start, client=client))
    return int((~judgement.spent).sum())


moves_of = st.lists(st.tuples(st.integers(0, DAY), st.integers(-2 * WEEK, 2 * WEEK)), min_size=1, max_size=8)


@given(moves=moves_of, extra=st.sampled_from(["3/hour", "3/day", "3/week"]))
def test_a_wall_clock_that_is_set_gives_nothing_while_a_process_runs(moves, extra):
    stepped, steady, limits = TwoClocks(), TwoClocks(), Limits(extra_answers=extra)
    with_steps, without = MemoryLedger(clock=stepped.make()), MemoryLedger(clock=steady.make())
    for i, (passed, step) in enumerate(moves):
        for clocks, by in ((stepped, step), (steady, 0)):
            clocks.monotonic += passed
            clocks.ahead += by
        assert answered(with_steps, limits, 5, 10 * i) == answered(without, limits, 5, 10 * i)
        assert with_steps.now() == without.now()


def test_a_step_of_the_wall_clock_is_logged_once(caplog):
    clocks = TwoClocks()
    clock = clocks.make()
    clocks.ahead += 59
    clock.now()
    assert not caplog.records
    clocks.ahead += HOUR
    clock.now()
    clock.now()
    clocks.ahead -= 2 * HOUR
    clock.now()
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "the wall clock was set forward by 3659 s",
        "the wall clock was set back by 7200 s: b",
    ]


@settings(max_examples=40, deadline=None)
@given(pauses=st.lists(st.integers(-60, 2 * HOUR), min_size=2, max_size=10), extra=st.sampled_from(["2/hour", "2/day"]))
def test_restarts_give_nothing(pauses, extra):
    """Answers are those of the windows that the clock has passed, though the file is opened anew each time."""
    limits, clocks, latest, windows = Limits(extra_answers=extra), TwoClocks(), 0, set()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        total = 0
        for i, pause in enumerate(pauses):
            now = max(int(clocks.monotonic + clocks.ahead) + pause, latest - 60)
            clocks.ahead = now - clocks.monotonic
            latest = max(latest, now)
            windows.add(window(extra.split("/")[1], latest))
            with closing(SqliteLedger(Path(folder) / "a.db", clock=clocks.make())) as ledger:
                total += answered(ledger, limits, 3, 10 * i)
        assert total == 2 * len(windows)


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2 * HOUR)), min_size=2, max_size=12),
    ahead=st.integers(-60, 3 * DAY),
)
def test_two_processes_whose_clocks_differ_give_no_more_than_the_later_clock(turns, ahead):
    limits, clocks = Limits(extra_answers="2/hour"), (TwoClocks(), TwoClocks(MIDNIGHT + ahead))
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, ExitStack() as stack:
        ledgers = [
            stack.enter_context(closing(SqliteLedger(Path(folder) / "a.db", clock=one.make()))) for one in clocks
        ]
        total, latest, windows = 0, 0, set()
        for i, (turn, passed) in enumerate(turns):
            for one in clocks:
                one.monotonic += passed
            latest = max(latest, ledgers[turn].now())
            windows.add(window("hour", latest))
            total += answered(ledgers[turn], limits, 3, 10 * i)
        assert total <= 2 * len(windows)
