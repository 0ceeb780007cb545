"""Budgets that renew: all stores agree with the reference, and nobody gains a renewal by a restart or a clock."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import astuple, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.errors import LedgerError
from queen.ledger import Budget, Ledger, MemoryLedger, RedisLedger, SqliteLedger
from queen.ledger.redis.codec import pack_budget
from queen.ledger.usage import Usage
from queen.options import Group, Limits
from tests.reference.watch import Rules, Watcher
from tests.reference.windows import window
from tests.support.ledgers import ALL_LEDGERS, redis_ledger
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
    picture,
    pictures,
    queries_of,
    rules_of,
    sends_of,
    standings,
    variants_of,
)
from tests.support.redis_server import shared_server
from tests.support.times import MIDNIGHT, SetTime, TwoClocks, at_set_time, redis_time

_numbers = count()
HOUR, DAY, WEEK = 3600, 86400, 7 * 86400
FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # a disk would wait for every commit
POINTS = [(0.0, 0.0), (0.8, 0.0), (0.0, 0.8), (-0.8, 0.0), (0.0, -0.8), (0.5, 0.5)]
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


@pytest.mark.real
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(turns=st.lists(st.tuples(st.integers(0, 1), st.integers(-2 * HOUR, 2 * HOUR)), min_size=2, max_size=12))
def test_two_servers_on_one_redis_give_what_one_would_though_its_clock_is_set(turns):
    limits, now = Limits(extra_answers="2/hour"), MIDNIGHT
    shared, alone = f"shared-{next(_numbers)}", f"alone-{next(_numbers)}"
    with redis_time() as set_redis, ExitStack() as stack:
        *servers, one = (
            stack.enter_context(closing(RedisLedger(shared_server().url, prefix=prefix, timeout=30)))
            for prefix in (shared, shared, alone)
        )
        latest, windows, total = 0, set(), 0
        for i, (turn, passed) in enumerate(turns):
            now += passed
            set_redis(now)
            latest = max(latest, now)
            windows.add(window("hour", latest))
            got = answered(servers[turn], limits, 3, 10 * i)
            assert got == answered(one, limits, 3, 10 * i)
            total += got
        assert total == 2 * len(windows)


IN_DISCS = [picture(20 + i, point) for i, point in enumerate(POINTS)]
STATE_QUERIES = [*pictures(3), *pictures(3, 10, label=1), *IN_DISCS]


@settings(max_examples=100, deadline=None)
@given(
    limits=limits_of,
    sent=st.lists(st.integers(0, 11), max_size=30),
    later=st.sampled_from([0, HOUR, DAY]),
    asked=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([(2.0, 0.0), *POINTS])), min_size=2, max_size=6),
)
def test_what_is_said_of_a_refused_row_does_not_depend_on_the_row(limits, sent, later, asked):
    """Whatever class and place: the account alone decides when it may come back."""
    clock = SetTime()
    ledger = MemoryLedger(clock=clock)
    judge(ledger, Rules(limits), [STATE_QUERIES[i] for i in sent] or STATE_QUERIES[:1])
    clock.set(MIDNIGHT + later)
    said = set()
    for i, (label, point) in enumerate(asked):
        copy = deepcopy_of(ledger, clock)
        said |= set(judge(copy, Rules(limits), pictures(1, 100 + i, label=label, point=point)).denials.values())
    assert len(said) <= 1


@settings(max_examples=100, deadline=None)
@given(limits=limits_of, sent=st.lists(st.integers(0, 11), min_size=1, max_size=30), asked=st.integers(0, 11))
def test_who_comes_back_when_it_was_told_is_answered(limits, sent, asked):
    clock = SetTime(MIDNIGHT + 5 * HOUR)
    ledger = MemoryLedger(clock=clock)
    judge(ledger, Rules(limits), [STATE_QUERIES[i] for i in sent])
    again = replace(STATE_QUERIES[asked], digest=999, sketch=(1e4, *[0.0] * 7))
    denials = judge(deepcopy_of(ledger, clock), Rules(limits), again).denials
    if denials and denials[0].renews is not None:
        clock.set(denials[0].renews)
        assert not judge(deepcopy_of(ledger, clock), Rules(limits), again).spent.any()


def deepcopy_of(ledger: MemoryLedger, clock: SetTime) -> MemoryLedger:
    copy = MemoryLedger(clock=clock)
    copy._states, copy._tests = deepcopy(ledger._states), deepcopy(ledger._tests)
    return copy


def test_a_file_refuses_a_clock_that_is_behind_until_it_is_accepted(tmp_path):
    path, limits, now = tmp_path / "a.db", Limits(extra_answers="2/day"), MIDNIGHT + 10 * DAY
    with closing(SqliteLedger(path, clock=TwoClocks(now).make())) as ledger:
        assert answered(ledger, limits, 3, 0) == 2
    with pytest.raises(LedgerError, match=r"the clock is 777,600 s behind.*2026-11-28.*2026-11-19.*--accept"):
        SqliteLedger(path, clock=TwoClocks(now - 9 * DAY).make())
    with closing(SqliteLedger(path, clock=TwoClocks(now - 59).make())) as ledger:  # no more than drift
        assert ledger.now() == now
    right = TwoClocks(now - 9 * DAY)
    with closing(SqliteLedger(path, clock=right.make(), any_clock=True)) as ledger:
        ledger.accept_clock("olga")
        assert [(event.what, event.actor) for event in ledger.events()][-1] == ("clock", "olga")
        assert answered(ledger, limits, 1, 10) == 0  # nothing is given back
    with closing(SqliteLedger(path, clock=right.make())) as ledger:
        assert answered(ledger, limits, 1, 20) == 0
        right.monotonic += DAY
        assert answered(ledger, limits, 3, 30) == 2


def test_a_file_without_budgets_that_renew_takes_any_clock(tmp_path):
    path = tmp_path / "a.db"
    for now in (MIDNIGHT, MIDNIGHT - WEEK):
        with closing(SqliteLedger(path, clock=TwoClocks(now).make())) as ledger:
            answered(ledger, Limits(), 3, 0)
            assert ledger.fact("time") is None


@pytest.mark.real
def test_an_accepted_clock_lets_budgets_renew_at_the_end_of_the_present_window(tmp_path):
    limits, clock = Limits(radius=0.5, threshold="0.01/day", extra_answers="2/day"), SetTime(MIDNIGHT + WEEK)
    with redis_time() as set_redis, ExitStack() as stack:
        set_redis(clock.now())
        stores = {name: stack.enter_context(closing(one)) for name, one in at_set_time(clock, tmp_path).items()}
        for name, store in stores.items():
            ledger = store.ledger
            seen = []
            for i, now in enumerate([MIDNIGHT + WEEK, MIDNIGHT, None, MIDNIGHT, MIDNIGHT + DAY]):
                if now is None:
                    ledger.accept_clock("olga")
                    continue
                clock.set(now)
                set_redis(now)
                judgement = judge(ledger, Rules(limits), [*pictures(3, 10 * i), picture(10 * i + 5, POINTS[i])])
                seen.append((~judgement.spent).tolist())
            assert seen == [[True, True, False, True], [False] * 4, [False] * 4, [True, True, False, True]], name
            assert ledger.events()[-1].what in ("class spent", "budget spent")


@pytest.mark.real
def test_a_budget_that_an_older_server_wrote_is_for_life_though_there_was_one_that_renews():
    """It knows only of the first field; the periods that were there before are not those of what it wrote."""
    with closing(redis_ledger()) as ledger:
        ledger.set_budget("a", Budget(extra_answers="2/day", threshold="0.5/week"), "op")
        assert ledger.standing("a").budget == Budget(extra_answers="2/day", threshold="0.5/week")
        scope = ledger._keys("a")[0]
        packed, _ = pack_budget(Budget(extra_answers=7))
        ledger._servers.client_of(scope).hset(scope, "b", packed)
        assert ledger.standing("a").budget == Budget(extra_answers=7)
        assert answered(ledger, Limits(), 9, 0) == 7
        assert ledger.standing("a").extra_usage == Usage()


@pytest.mark.parametrize("make", ALL_LEDGERS.values(), ids=ALL_LEDGERS)
def test_the_end_of_a_budget_that_renews_is_noted_once(make):
    """On the true clocks of all stores; that it is noted again after a renewal, the reference says."""
    with closing(make()) as ledger:
        for extra in ("5/month", "5/month", "6/month"):
            answered(ledger, Limits(extra_answers=extra), 9, 0 if extra == "5/month" else 100)
        assert [event.what for event in ledger.events()] == ["budget low", "budget spent", "budget spent"]
