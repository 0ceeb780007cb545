"""What the ledgers keep for the sentinel: bounded, written as a whole or not at all, and shared between connections."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from queen.errors import LedgerError
from queen.ledger import MemoryLedger, SqliteLedger
from queen.ledger.base import Budget
from queen.ledger.sqlite_schema import load
from queen.sentinel.sketch import Memory
from tests.reference.watch import Rules
from tests.support.points import cut
from tests.support.queries import (
    LIMITS,
    NAMES,
    PLENTY,
    RULES,
    events,
    flags,
    judge,
    picture,
    pictures,
    standings,
    traffic,
)
from tests.support.sqlite_failures import FAILURES, fail_at, mend

CAPACITY = Memory.CAPACITY
SCOPES = [(False, name) for name in NAMES] + [(True, "everyone")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def remembered(ledger: MemoryLedger | SqliteLedger, name: str, *, group: bool = False) -> tuple[int, list]:
    """How many queries were ever kept in mind, and those that still are, by slot."""
    if isinstance(ledger, MemoryLedger):
        memory = ledger._states[group, name].memory
    else:
        memory = load(ledger._db, name, group=group).memory
    return memory.count, [memory.slot(i) for i in range(memory.size)]


def everything(ledger: MemoryLedger | SqliteLedger) -> tuple:
    return standings(ledger), events(ledger), [remembered(ledger, name, group=group) for group, name in SCOPES]


@pytest.mark.parametrize("sizes", [[CAPACITY - 2, *[1] * 5], [700] * 3, [3 * CAPACITY]], ids=["rows", "parts", "whole"])
def test_the_memory_of_repeats_is_bounded_in_ram_and_in_the_file(path, sizes):
    queries, rules = pictures(sum(sizes)), Rules(replace(PLENTY, extra_answers=10**6))
    memory = MemoryLedger()
    with closing(SqliteLedger(path)) as ledger:
        for part in cut(len(queries), sizes):
            judge(memory, rules, queries[part])
            judge(ledger, rules, queries[part])
        rows = ledger._db.execute("SELECT id FROM seen ORDER BY id").fetchall()
        assert [number - rows[0][0] for (number,) in rows] == list(range(CAPACITY))
        assert remembered(ledger, "a") == remembered(memory, "a")
        for kept in (memory._states[False, "a"].memory, load(ledger._db, "a", group=False).memory):
            assert kept.count == len(queries)
            assert kept.size == len(kept.digests) == len(kept.following) == CAPACITY


def test_a_batch_under_another_policy_leaves_no_trace_of_the_sentinel(path):
    with closing(SqliteLedger(path)) as ledger:
        ledger.judge("a", [0, 0], [[0.0, 0.0], [2.0, 0.0]], LIMITS)
        assert ledger._db.execute("SELECT count(*) FROM seen").fetchone() == (0,)
        assert (ledger.standing("a").queries, ledger.standing("a").extra_answers) == (2, 0)


WAYS_TO_FAIL = {
    **FAILURES,
    "evidence": fail_at("UPDATE scope"),
    "memory": fail_at("INSERT OR REPLACE INTO seen"),
    "records": fail_at("INSERT INTO record"),
    "events": fail_at("INSERT INTO event"),
}


@pytest.mark.parametrize("fail", WAYS_TO_FAIL.values(), ids=WAYS_TO_FAIL)
def test_a_failed_write_leaves_evidence_budgets_and_memory_as_they_were(path, fail):
    queries = traffic(3, 1400)
    first, second = queries[:200], [*queries[200:], picture(0, client="new")]
    memory = MemoryLedger()
    with closing(SqliteLedger(path)) as ledger:
        assert flags(judge(ledger, RULES, first)) == flags(judge(memory, RULES, first))
        before = everything(memory)
        fail(ledger)
        for _ in range(2):
            with pytest.raises(LedgerError, match="Nothing was recorded"):
                judge(ledger, RULES, second)
        assert everything(ledger) == before
        with closing(SqliteLedger(path)) as fresh:
            assert everything(fresh) == before
        mend(ledger)
        assert flags(judge(ledger, RULES, second)) == flags(judge(memory, RULES, second))
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
        assert flags(judge(ledger, RULES, later)) == flags(judge(memory, RULES, later))
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
            assert flags(judge(ledger, RULES, part)) == flags(judge(memory, RULES, part))
            if turn == 60:
                for each in (two, memory):
                    each.pardon("c", "op")
                    each.allow("b", "op")
        assert everything(one) == everything(two) == everything(memory)
    assert {e.what for e in memory.events()} == {"alarm", "pardon", "allow"}


@pytest.mark.parametrize("cache", [0, 1, 3])
def test_a_small_cache_changes_nothing_for_the_sentinel(path, cache, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 50)
    memory, queries = MemoryLedger(), traffic(2, 600)
    with closing(SqliteLedger(path, cache=cache)) as ledger:
        for start in range(0, 600, 12):
            part = queries[start : start + 12]
            assert flags(judge(ledger, RULES, part)) == flags(judge(memory, RULES, part))
            assert len(ledger._cache) <= cache
        assert everything(ledger) == everything(memory)


def test_an_accused_client_is_accused_by_the_next_process_too(path):
    rules = Rules(PLENTY, bar=1.0)
    with closing(SqliteLedger(path)) as ledger:
        judge(ledger, rules, picture(0, bet=(2.0,)))
    with closing(SqliteLedger(path)) as ledger:
        assert judge(ledger, rules, picture(1)).alarmed.all()
        (event,) = ledger.events()
        assert (event.wealth, event.client) == (1.5, "a")
