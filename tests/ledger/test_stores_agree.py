"""Memory, SQLite and Redis decide alike to the last bit while all else changes: limits, tests, policies, operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.ledger import Ledger, MemoryLedger, RedisLedger
from queen.ledger.redis.codec import _codes
from queen.ledger.rows import make_rows
from queen.options import Group, Limits
from queen.sentinel.sketch import SIZE, Memory
from tests.reference.watch import Query, Rules
from tests.support.evidence import evidence_of
from tests.support.ledgers import LEDGERS, OTHER_WAYS, redis_ledger
from tests.support.points import cut, cuts_of
from tests.support.queries import (
    FOREIGN,
    GROUPS,
    NAMES,
    PLENTY,
    TESTS,
    accuse_everyone,
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
from tests.support.redis_server import shared_server

_numbers = count()


class Replicas:
    """Two servers that share one Redis, asked in turn."""

    def __init__(self) -> None:
        prefix = f"replicas-{next(_numbers)}"
        self.ledgers = [RedisLedger(shared_server().url, prefix=prefix, timeout=30) for _ in range(2)]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.ledgers.reverse()
        return getattr(self.ledgers[0], name)

    def close(self) -> None:
        for ledger in self.ledgers:
            ledger.close()


STORES = {"redis": redis_ledger, "redis replicas": Replicas, **OTHER_WAYS}
ALL_WAYS = {**STORES, "sqlite": LEDGERS["sqlite"]}


@st.composite
def time_of(draw) -> tuple:
    """Some time during which nothing but the traffic and the test changes, and which policies take turns in it.

    The test alternates from batch to batch, as it does while servers change to another calibration; None stands for a
    policy that is not the sentinel's.
    """
    rules = draw(rules_of())
    tests = draw(st.lists(st.sampled_from([*TESTS, TESTS[0], None]), min_size=1, max_size=3))
    return rules, tests, draw(sends_of), draw(cuts_of), draw(operation_of), draw(st.integers(0, 2))


def judge_under(ledger: Ledger, rules: Rules, test: int | None, queries: list[Query], steps: int = 0) -> list[tuple]:
    rules = moved(rules, TESTS[0] if test is None else test, steps)
    rows = rules.rows(queries)
    if test is None:
        owner, points = rows.owner, np.column_stack([rows.x, rows.y])
        groups = [rules.groups.get(client, {}) for client in rows.clients]
        rows = make_rows(rows.clients, owner, rows.labels, points, rules.limits, groups=groups)
    return outcomes(ledger.judge_rows(rows))


def all_evidence(ledger: Ledger | Replicas) -> dict:
    """Clocks, purses and counts of everybody."""
    store = ledger.ledgers[0] if isinstance(ledger, Replicas) else ledger
    whom = [(name, False) for name in NAMES] + [(name, True) for name in GROUPS]
    return {who: list(evidence_of(store, who[0], group=who[1]).items()) for who in whom}


def everything(ledger: Ledger) -> tuple:
    records = {name: {k: v.tolist() for k, v in ledger.records(name).items()} for name in NAMES}
    groups = [ledger.standing(name, group=True) for name in GROUPS]
    return standings(ledger), events(ledger), records, list(ledger.clients()), groups, all_evidence(ledger)


@pytest.mark.real
@pytest.mark.slow
@settings(max_examples=50)
@given(
    album=album_of,
    times=st.lists(time_of(), min_size=2, max_size=4),
    capacity=st.sampled_from([1, 3, 1024]),
    alarm=st.sampled_from([1, 1, 2, None]),
)
def test_all_stores_agree_while_everything_changes(album, times, capacity, alarm):
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(Memory, "CAPACITY", capacity)
        memory = MemoryLedger()
        stores = {name: stack.enter_context(closing(make())) for name, make in STORES.items()}
        for number, (rules, tests, sends, sizes, operation, steps) in enumerate(times):
            if number == alarm:
                expected = accuse_everyone(memory)
                for name, store in stores.items():
                    assert accuse_everyone(store) == expected, name
            queries = queries_of(sends, variants_of(album, rules.limits))
            for i, part in enumerate(cut(len(queries), sizes)):
                test = tests[i % len(tests)]
                expected = judge_under(memory, rules, test, queries[part], steps)
                for name, store in stores.items():
                    assert judge_under(store, rules, test, queries[part], steps) == expected, name
            for store in (memory, *stores.values()):
                operate(store, *operation)
        expected = everything(memory)
        for name, store in stores.items():
            assert everything(store) == expected, name


def long_stream(seed: int, scores: int) -> list[Query]:
    """Many classes, and more queries of some than a byte counts; what the client sends gets more and more foreign."""
    rng = np.random.default_rng(seed)
    queries = []
    for time in range(1500):
        label = int(rng.choice([0, 0, 0, 1, 2, 3 * rng.integers(1, 60)]))
        ranks = [int(rank) for rank in rng.integers(0, 20, scores)]
        bet = tuple((rank, max(0, rank - 1), bool(rank < 6 and rng.integers(2))) for rank in ranks)
        queries.append(Query("a", label, (2.0, 0.0), time, (10.0 * time, *[0.0] * (SIZE - 1)), bet))
    return queries


@pytest.mark.parametrize("make", ALL_WAYS.values(), ids=ALL_WAYS)
@pytest.mark.parametrize("scores", [1, 3, 4])
def test_long_streams_are_counted_alike_to_the_last_purse(make, scores):
    memory, queries = MemoryLedger(), long_stream(scores, scores)
    rules = [Rules(Limits(extra_answers=10**6), scores, 1e30, test=test) for test in (1, 2)]
    with closing(make()) as store:
        for i in range(0, 1500, 50):
            for ledger in (memory, store):
                judge(ledger, rules[i // 50 % 3 // 2], queries[i : i + 50])
        assert standings(store) == standings(memory)
        assert all_evidence(store) == all_evidence(memory)
        one, other = (counts for _, (_, _, counts) in all_evidence(memory)["a", False])
        assert min(len(one), len(other)) > 30
        assert min(one[0][0], other[0][0]) < 256 < max(one[0][0], other[0][0])  # bets on one class: more than a byte


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_an_alarm_in_the_middle_of_a_batch_ends_the_bets_of_its_client_alone(make):
    queries = [query for i in range(12) for query in pictures(1, start=i, client=NAMES[i % 2], bet=FOREIGN)]
    for enforce in (True, False):
        memory, rules = MemoryLedger(), Rules(PLENTY, bar=3.0, enforce=enforce)
        with closing(make()) as store:
            expected = outcomes(judge(memory, rules, queries))
            assert outcomes(judge(store, rules, queries)) == expected
            assert {alarmed for _, _, alarmed, *_ in expected} == {True, False}
            assert all_evidence(store) == all_evidence(memory)
            assert events(store) == events(memory)


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_a_group_that_two_clients_name_under_different_limits_counts_once(make):
    poor, rich = (Group(limits=Limits(radius=0.1, extra_answers=extra)) for extra in (2, 4))
    names, groups = ("poor", "rich"), [{"team": poor}, {"team": rich}]
    points = np.array([[0.2 * i - 0.9, 0.0] for i in range(8)] + [[2.0, 0.0]] * 8)
    rows = make_rows(names, np.arange(16) % 2, [0] * 16, points, Limits(radius=0.1), groups=groups)
    queries = [Query(names[i % 2], 0, (2.0, 0.0), i + 1, (10.0 * i, *[0.0] * 7)) for i in range(12)]
    watch = Rules(Limits(), groups=dict(zip(names, groups, strict=True))).rows(queries)
    with closing(make()) as store:
        memory = MemoryLedger()
        for batch in (rows, watch):
            assert outcomes(store.judge_rows(batch)) == outcomes(memory.judge_rows(batch))
        assert standings(store) == standings(memory)
        assert store.standing("team", group=True).extra_answers == 4


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
@pytest.mark.parametrize("capacity", [1, 7, 64])
def test_inputs_whose_features_are_not_their_own_are_recognised_alike(make, capacity, monkeypatch):
    """Digests and sketches at random: a known input may look like another one, or like none."""
    monkeypatch.setattr(Memory, "CAPACITY", capacity)
    rng = np.random.default_rng(capacity)
    sketches = (rng.integers(-3, 3, (30, SIZE)) * np.float32(0.75)).astype(np.float32).tolist()
    digests = [0, 1, -1, 256, 2**56, 2**63 - 1, *range(1000, 1020)]
    queries = [
        Query("a", 0, (2.0, 0.0), digests[rng.integers(len(digests))], tuple(sketches[rng.integers(30)]), FOREIGN)
        for _ in range(600)
    ]
    rules, memory = Rules(Limits(extra_answers=400), 1, bar=1e9), MemoryLedger()
    with closing(make()) as store:
        for i in range(0, 600, 40):
            rows = rules.rows(queries[i : i + 40])
            assert outcomes(store.judge_rows(rows)) == outcomes(memory.judge_rows(rows))
            assert store.standing("a") == memory.standing("a")


float32 = st.floats(-12, 12, width=32) | st.sampled_from([0.0, 4.0, -4.0, 8.0, 2.0**41, -(2.0**41), 1e30, 3.9999998])


@pytest.mark.slow
@settings(max_examples=500)
@given(
    remembered=st.lists(float32, min_size=SIZE, max_size=SIZE),
    moves=st.lists(st.floats(-1, 1, width=32), min_size=SIZE, max_size=SIZE),
)
def test_whatever_is_near_has_a_code_that_is_looked_for(remembered, moves):
    value = (np.array(remembered, np.float32) + np.array(moves, np.float32)).astype(np.float32)
    memory = Memory()
    memory.add_picture(tuple(remembered))
    code, _, _ = _codes(np.array([remembered], np.float32))
    _, (count,), (codes,) = _codes(value[None])
    assert 1 <= count <= 16
    assert len(set(codes[:count].tolist())) == count  # none is looked for twice
    if memory.has_near(tuple(value.tolist())):
        assert code[0] in codes[:count]


def test_far_sketches_mostly_have_other_codes():
    rng = np.random.default_rng(0)
    sketches = rng.normal(0, 15, (2000, SIZE)).astype(np.float32)
    codes, counts, looks = _codes(sketches)
    assert counts.mean() < 6
    shared = [np.isin(codes, looks[i, : counts[i]]).sum() - 1 for i in range(300)]
    assert np.mean(shared) < 5  # of 2,000 others: a query is compared with few


@pytest.mark.real
def test_prefixes_and_clients_of_one_server_do_not_mix():
    with closing(redis_ledger()) as one, closing(redis_ledger()) as other:
        one.judge("a", [0], np.zeros((1, 2)), Limits())
        assert list(one.clients()) == ["a"]
        assert list(other.clients()) == []
