"""What the ledgers keep for the sentinel: bounded, written as a whole or not at all, and shared between connections."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.errors import LedgerError
from queen.ledger import MemoryLedger, SqliteLedger
from queen.ledger.sqlite.codec import BLOCK, POWER, pack_block, pack_purses, unpack_block, unpack_purses
from queen.ledger.sqlite.schema import load
from queen.ledger.state import ScopeState
from queen.ledger.words import Budget
from queen.sentinel import wealth
from queen.sentinel.bets import LANES, Test
from queen.sentinel.sketch import Memory
from queen.sentinel.wealth import Winnings
from tests.reference.watch import Rules
from tests.support.points import cut
from tests.support.queries import (
    FOREIGN,
    LIMITS,
    NAMES,
    PLENTY,
    RULES,
    USUAL,
    events,
    judge,
    outcomes,
    picture,
    pictures,
    standings,
    traffic,
    wealth_of,
)
from tests.support.sqlite_failures import FAILURES, fail_at, mend

CAPACITY = Memory.CAPACITY
SCOPES = [(False, name) for name in NAMES] + [(True, "everyone")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def state_of(ledger: MemoryLedger | SqliteLedger, name: str, *, group: bool = False) -> ScopeState:
    """What a ledger has in memory, or a new process would read from its file."""
    if isinstance(ledger, MemoryLedger):
        return ledger._states[group, name]
    return load(ledger._db, name, group=group)


def remembered(state: ScopeState) -> tuple:
    """How many pictures and answers were ever remembered, and those that still are, slot by slot; the homes."""
    memory = state.memory
    return memory.pictures, memory.sketches.tolist(), memory.answered, memory.digests.tolist(), state.homes


def won(state: ScopeState) -> list:
    """The winnings in every test, in order of use, and how many tests the older one has outlasted."""
    return [
        state.outlasted,
        *(
            (test, one.clocks.tolist(), one.purses.tolist(), {k: v.tolist() for k, v in sorted(one.counts.items())})
            for test, one in state.winnings.items()
        ),
    ]


def everything(ledger: MemoryLedger | SqliteLedger) -> tuple:
    states = [state_of(ledger, name, group=group) for group, name in SCOPES]
    return standings(ledger), events(ledger), [remembered(state) for state in states], [won(state) for state in states]


@pytest.mark.parametrize("sizes", [[CAPACITY - 2, *[1] * 5], [700] * 3, [3 * CAPACITY]], ids=["rows", "parts", "whole"])
def test_the_memory_of_repeats_is_bounded_in_ram_and_in_the_file(path, sizes):
    queries, rules = pictures(sum(sizes)), Rules(replace(PLENTY, extra_answers=10**6))
    memory = MemoryLedger()
    with closing(SqliteLedger(path)) as ledger:
        for part in cut(len(queries), sizes):
            judge(memory, rules, queries[part])
            judge(ledger, rules, queries[part])
        for table in ("picture", "answered"):
            rows = ledger._db.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()
            assert [number - rows[0][0] for (number,) in rows] == list(range(CAPACITY))
        assert remembered(state_of(ledger, "a")) == remembered(state_of(memory, "a"))
        for ring in (state_of(memory, "a").memory, state_of(ledger, "a").memory):
            assert ring.pictures == ring.answered == len(queries)
            assert len(ring.digests) == len(ring.following) == CAPACITY


def test_a_batch_under_another_policy_leaves_no_trace_of_the_sentinel(path):
    with closing(SqliteLedger(path)) as ledger:
        ledger.judge("a", [0, 0], [[0.0, 0.0], [2.0, 0.0]], LIMITS)
        for table in ("picture", "answered", "winnings", "counts", "test"):
            assert ledger._db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        assert (ledger.standing("a").queries, ledger.standing("a").extra_answers) == (2, 0)


WAYS_TO_FAIL = {
    **FAILURES,
    "scopes": fail_at("UPDATE scope"),
    "purses": fail_at("INSERT OR REPLACE INTO winnings"),
    "counts": fail_at("INSERT OR REPLACE INTO counts"),
    "pictures": fail_at("INSERT OR REPLACE INTO picture"),
    "answers": fail_at("INSERT OR REPLACE INTO answered"),
    "records": fail_at("INSERT INTO record"),
    "events": fail_at("INSERT INTO event"),
}


@pytest.mark.parametrize("fail", WAYS_TO_FAIL.values(), ids=WAYS_TO_FAIL)
def test_a_failed_write_leaves_evidence_budgets_and_memory_as_they_were(path, fail):
    queries = traffic(3, 1400)
    first, second = queries[:200], [*queries[200:], picture(0, client="new")]
    memory = MemoryLedger()
    with closing(SqliteLedger(path)) as ledger:
        assert outcomes(judge(ledger, RULES, first)) == outcomes(judge(memory, RULES, first))
        before = everything(memory)
        fail(ledger)
        for _ in range(2):
            with pytest.raises(LedgerError, match="Nothing was recorded"):
                judge(ledger, RULES, second)
        assert everything(ledger) == before
        with closing(SqliteLedger(path)) as fresh:
            assert everything(fresh) == before
        mend(ledger)
        assert outcomes(judge(ledger, RULES, second)) == outcomes(judge(memory, RULES, second))
        assert everything(ledger) == everything(memory) != before
        assert len(ledger.events()) > len(before[1])  # the second batch raised an alarm


OPERATIONS = {
    "pardon": lambda ledger: ledger.pardon("c", "op"),
    "allow": lambda ledger: ledger.allow("a", "op"),
    "budget": lambda ledger: ledger.set_budget("a", Budget(extra_answers=9), "op"),
    "a stranger's budget": lambda ledger: ledger.set_budget("stranger", Budget(extra_answers=9), "op"),
    "acknowledge": lambda ledger: ledger.acknowledge(1, "op"),
}


@pytest.mark.parametrize("fail", [FAILURES["commit"], FAILURES["read-only"]], ids=["commit", "read-only"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_what_an_operator_did_is_whole_or_not_at_all(path, operation, fail):
    memory, queries = MemoryLedger(), traffic(0, 700)
    with closing(SqliteLedger(path)) as ledger:
        for each in (memory, ledger):
            judge(each, RULES, queries)
        before, noted = everything(memory), [e.acknowledged for e in memory.events()]
        assert memory.standing("c").alarmed
        fail(ledger)
        with pytest.raises(LedgerError, match="Nothing was recorded"):
            operation(ledger)
        assert everything(ledger) == before
        assert [e.acknowledged for e in ledger.events()] == noted
        mend(ledger)
        later = [picture(900 + i, client=name) for i, name in enumerate(NAMES)]
        assert outcomes(judge(ledger, RULES, later)) == outcomes(judge(memory, RULES, later))
        for each in (memory, ledger):
            operation(each)
        assert everything(ledger) == everything(memory) != before


def test_two_connections_on_one_file_stay_exact(path, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 50)
    memory, queries = MemoryLedger(), traffic(1, 900)
    with closing(SqliteLedger(path)) as one, closing(SqliteLedger(path)) as two:
        for turn, start in enumerate(range(0, 900, 9)):
            ledger = one if turn % 3 else two
            part = queries[start : start + 9]
            assert outcomes(judge(ledger, RULES, part)) == outcomes(judge(memory, RULES, part))
            if turn == 60:
                for each in (two, memory):
                    each.pardon("c", "op")
                    each.allow("b", "op")
        assert everything(one) == everything(two) == everything(memory)
    assert {e.what for e in memory.events()} == {"alarm", "pardon", "allow", "class low", "class spent"}


@pytest.mark.parametrize("cache", [0, 8_000, 20_000])
def test_a_small_cache_changes_nothing_for_the_sentinel(path, cache, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 50)
    memory, queries = MemoryLedger(), traffic(2, 600)
    with closing(SqliteLedger(path, cache=cache)) as ledger:
        for start in range(0, 600, 12):
            part = queries[start : start + 12]
            assert outcomes(judge(ledger, RULES, part)) == outcomes(judge(memory, RULES, part))
            assert ledger._cache.bytes <= cache
        assert everything(ledger) == everything(memory)


def test_an_accused_client_is_accused_by_the_next_process_too(path):
    rules = Rules(PLENTY, bar=1.0)
    with closing(SqliteLedger(path)) as ledger:
        judge(ledger, rules, picture(0, bet=FOREIGN))
    with closing(SqliteLedger(path)) as ledger:
        assert judge(ledger, rules, picture(1)).alarmed.all()
        (event,) = ledger.events()
        assert (event.wealth, event.client) == (wealth_of(FOREIGN), "a")


def test_a_failed_write_takes_back_the_number_of_a_test(path):
    with closing(SqliteLedger(path)) as ledger:
        fail_at("COMMIT")(ledger)
        for call in (lambda: ledger.number_of(a_test(5)), lambda: judge(ledger, Rules(PLENTY, test=5), picture(0))):
            with pytest.raises(LedgerError, match="Nothing was recorded"):
                call()
        mend(ledger)
        assert [ledger.number_of(a_test(number)) for number in (6, 5)] == [1, 2]


def a_test(number: int) -> Test:
    return Rules(PLENTY, test=number).the_test


def test_two_connections_number_tests_in_one_order(path):
    with closing(SqliteLedger(path)) as one, closing(SqliteLedger(path)) as two:
        assert (one.number_of(a_test(5)), two.number_of(a_test(7)), one.number_of(a_test(9))) == (1, 2, 3)
        for ledger in (one, two):
            assert [ledger.number_of(a_test(number)) for number in (9, 7, 5)] == [3, 2, 1]


def test_a_third_test_leaves_nothing_of_the_first_in_the_file(path):
    memory = MemoryLedger()
    with closing(SqliteLedger(path)) as ledger:
        for test, classes in ((1, (0, 40, 100)), (2, (0,)), (3, (17,)), (2, (0, 5)), (1, (5,))):
            queries = [picture(100 * test + 7 * k, label=k, bet=FOREIGN if test > 1 else USUAL) for k in classes]
            for each in (memory, ledger):
                judge(each, Rules(PLENTY, bar=1e9, test=test), queries)
            assert won(state_of(ledger, "a")) == won(state_of(memory, "a"))
        assert ledger._db.execute("SELECT count(*) FROM winnings").fetchone() == (2,)
        assert ledger._db.execute("SELECT count(*) FROM counts").fetchone() == (2,)
        ledger.pardon("a", "op")
        for table in ("winnings", "counts"):
            assert ledger._db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        assert state_of(ledger, "a").winnings == {}


def test_only_what_changed_is_written(path):
    rules = Rules(PLENTY, bar=1e9)
    with closing(SqliteLedger(path)) as ledger:
        judge(ledger, rules, [picture(k, label=k, bet=USUAL) for k in range(60)])
        before = dict(ledger._db.execute("SELECT id % (1 << 28), numbers FROM counts"))
        judge(ledger, rules, picture(99, label=20, bet=USUAL))
        after = dict(ledger._db.execute("SELECT id % (1 << 28), numbers FROM counts"))
        assert [block for block in after if after[block] != before[block]] == [20 // BLOCK]
        changes = ledger._db.total_changes
        judge(ledger, rules, picture(99, label=20, bet=USUAL))  # a repeat: nothing but a query to count
        assert ledger._db.total_changes == changes + 1
        assert [len(before), len(after)] == [4, 4]


numbers_of = st.integers(0, 300) | st.integers(0, 2**17) | st.integers(0, wealth.MOST)


@settings(max_examples=60)
@given(
    data=st.data(),
    scores=st.integers(1, 4),
    labels=st.sets(st.integers(0, 40) | st.just(2**31 - 1), min_size=1, max_size=6),
)
def test_winnings_come_back_as_they_were_written(data, scores, labels):
    drawn = Winnings.empty(scores)
    drawn.clocks[:] = data.draw(st.lists(st.integers(0, 2**40), min_size=1 + scores, max_size=1 + scores))
    drawn.purses[:] = data.draw(
        st.lists(st.floats(0, width=32), min_size=len(drawn.purses), max_size=len(drawn.purses))
    )
    columns = 1 + scores + scores * LANES
    for label in labels:
        few = data.draw(st.lists(numbers_of, min_size=columns, max_size=columns))
        drawn.counts[label] = np.array(few, np.int64)
        drawn.counts[label][1 + scores + POWER :: LANES] *= data.draw(st.sampled_from([1, 16, 5000]))
    again = unpack_purses(*pack_purses(drawn))
    for block in {label // BLOCK for label in labels}:
        unpack_block(again, block, pack_block(drawn, block))
    assert again.clocks.tolist() == drawn.clocks.tolist()
    assert again.purses.tobytes() == drawn.purses.tobytes()
    assert {k: v.tolist() for k, v in again.counts.items()} == {k: v.tolist() for k, v in drawn.counts.items()}


def test_bytes_of_another_length_are_no_winnings():
    winnings = Winnings.empty(2)
    winnings.counts[3] = np.arange(13)
    clocks, purses = pack_purses(winnings)
    block = pack_block(winnings, 0)
    for wrong in ((b"", purses), (clocks[1:], purses), (clocks, purses[4:]), (clocks, b""), (clocks, purses + b"1")):
        with pytest.raises(ValueError, match=r"."):
            unpack_purses(*wrong)
    for wrong in (b"", block[:1], block[:3], block[:-1], block + b"1", b"\x09" + block[1:], bytes(len(block))):
        with pytest.raises((ValueError, IndexError)):
            unpack_block(winnings, 0, wrong)


@pytest.mark.parametrize("make", [MemoryLedger, lambda: SqliteLedger(":memory:")], ids=["memory", "sqlite"])
def test_a_class_places_no_more_bets_than_its_counts_can_hold(make, monkeypatch):
    monkeypatch.setattr(wealth, "MOST", 3)
    rules = Rules(PLENTY, bar=1e9)
    for sizes in ([8], [2, 6], [1] * 8, [3, 5]):
        with closing(make()) as ledger:
            stream = pictures(8, bet=FOREIGN)
            for part in cut(8, sizes):
                judge(ledger, rules, stream[part])
            assert ledger.standing("a").wealth == wealth_of(*[FOREIGN] * 3)
            judge(ledger, rules, picture(9, label=1, bet=FOREIGN))
            assert ledger.standing("a").wealth > wealth_of(*[FOREIGN] * 3)
