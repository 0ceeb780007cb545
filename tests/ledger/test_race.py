"""Several processes on one client and class: nothing is accepted twice, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from queen.core.sensitivity import query_area
from queen.ledger import Ledger, RedisLedger, SqliteLedger
from queen.options import Limits
from queen.sentinel.bets import Test
from tests.reference.watch import Rules
from tests.support.evidence import evidence_of
from tests.support.queries import PLENTY, USUAL, judge, picture
from tests.support.redis_server import redis_server

PROCESSES, QUERIES, BATCH = 4, 2000, 4
RADIUS = 0.02
LIMITS = Limits(radius=RADIUS, threshold=1e9)
POINTS = np.random.default_rng(0).uniform(-0.6, 0.6, (QUERIES, 2))  # the same for all, so that they meet
fork = multiprocessing.get_context("fork")  # a fresh interpreter would need seconds to import torch


def race(work: Callable[[], object]) -> list:
    """What each of several processes found, all started at the same moment."""
    start, results = fork.Barrier(PROCESSES), fork.Queue()

    def run() -> None:
        start.wait(60)
        results.put(work())

    processes = [fork.Process(target=run, daemon=True) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join(60)
    return found


def twice(points: np.ndarray) -> int:
    """How many pairs of records are nearer to each other than the radius."""
    dx, dy = (points[:, None, axis] - points[None, :, axis] for axis in (0, 1))
    return int((np.triu(dx * dx + dy * dy < RADIUS * RADIUS, 1)).sum())


def letters_of(open_it: Callable[[], Ledger]) -> str:
    with closing(open_it()) as ledger:
        return "".join(
            ledger.judge("a", [0] * BATCH, POINTS[i : i + BATCH], LIMITS).letters for i in range(0, QUERIES, BATCH)
        )


def answered_of(open_it: Callable[[], Ledger]) -> int:
    """How many queries were answered; 400 pictures are sent again and again, and there is budget for 300."""
    rules = Rules(replace(PLENTY, extra_answers=300), bar=1e9)
    with closing(open_it()) as ledger:
        return sum(
            int((~judge(ledger, rules, [picture(i % 400 + j, bet=USUAL) for j in range(BATCH)]).spent).sum())
            for i in range(0, QUERIES, BATCH)
        )


def numbers_of(open_it: Callable[[], Ledger]) -> dict[int, int]:
    """The numbers that twenty tests got, asked for in an order of one's own."""
    order = np.random.default_rng(os.getpid()).permutation(20).tolist()
    with closing(open_it()) as ledger:
        return {number: ledger.number_of(Test(number, 1, 1e-3, 0.05)) for number in order}


def bet_in_two_tests(open_it: Callable[[], Ledger]) -> None:
    """Two hundred pictures of one's own, of five classes, in two tests by turns."""
    with closing(open_it()) as ledger:
        for i in range(0, 200, BATCH):
            rules, first = Rules(PLENTY, bar=1e9, test=1 + i // BATCH % 2), 200 * (os.getpid() % 1000) + i
            judge(ledger, rules, [picture(first + j, label=(i + j) % 5, bet=USUAL) for j in range(BATCH)])


@pytest.fixture(params=["sqlite", "redis"])
def open_it(request, tmp_path):
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        SqliteLedger(path).close()
        yield partial(SqliteLedger, path, timeout=60)
        return
    server = redis_server(tmp_path / "redis")
    yield partial(RedisLedger, server.url, timeout=30)
    server.kill()


def test_no_point_is_accepted_twice_and_none_is_lost(open_it):
    letters = "".join(race(partial(letters_of, open_it)))
    assert len(letters) == PROCESSES * QUERIES
    with closing(open_it()) as ledger:
        records = ledger.records("a")[0]
        assert twice(records) == 0
        assert letters.count("C") == len(records) > 500
        areas = sum(query_area(x, y, RADIUS) for x, y in records.tolist())
        assert ledger.coverage("a")[0] == pytest.approx(areas, rel=1e-9)
        assert ledger.standing("a").queries == PROCESSES * QUERIES


def test_all_processes_share_one_memory_of_repeats(open_it):
    answered = race(partial(answered_of, open_it))
    with closing(open_it()) as ledger:
        standing = ledger.standing("a")
        assert standing.queries == PROCESSES * QUERIES
        assert standing.extra_answers == 300  # each picture was paid for once ...
        assert answered == [QUERIES * 300 // 400] * PROCESSES  # ... and is free for all from then on


def test_all_processes_number_the_tests_alike(open_it):
    first, *others = race(partial(numbers_of, open_it))
    assert others == [first] * (PROCESSES - 1)
    assert sorted(first.values()) == list(range(1, 21))


def test_no_bet_of_any_process_is_lost(open_it):
    race(partial(bet_in_two_tests, open_it))
    with closing(open_it()) as ledger:
        evidence = evidence_of(ledger, "a")
        assert evidence.keys() == {1, 2}
        for clocks, _, counts in evidence.values():
            assert clocks == [100 * PROCESSES, 0]
            assert {label: numbers[0] for label, numbers in counts.items()} == dict.fromkeys(range(5), 20 * PROCESSES)


class Careless:
    """Reads, decides and writes back, as one might think would do."""

    def __init__(self, url: str) -> None:
        self._ledger = RedisLedger(url, timeout=30)
        self._client = self._ledger._servers.client_of("")

    def judge(self, point: np.ndarray) -> str:
        known = np.frombuffer(b"".join(self._client.lrange("points", 0, -1))).reshape(-1, 2)
        if len(known) and (((known - point) ** 2).sum(1) < RADIUS * RADIUS).any():
            return "D"
        self._client.rpush("points", point.tobytes())
        return "C"


@pytest.mark.real
def test_the_race_is_hard_enough_to_catch_a_careless_ledger(tmp_path: Path):
    server = redis_server(tmp_path / "redis")

    def work() -> str:
        ledger = Careless(server.url)
        return "".join(map(ledger.judge, POINTS[:500]))

    def mistakes() -> int:
        letters = "".join(race(work))
        with server.client() as client:
            records = np.frombuffer(b"".join(client.lrange("points", 0, -1))).reshape(-1, 2)
            client.delete("points")
        assert letters.count("C") == len(records)
        return twice(records)

    try:
        assert any(mistakes() > 10 for _ in range(20))  # on a busy machine one process may be done before the next runs
    finally:
        server.kill()
