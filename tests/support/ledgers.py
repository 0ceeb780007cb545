"""Every ledger under test: how to make an empty one of each kind, and how to put it to the test."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from queen.ledger import Ledger, MemoryLedger, RedisLedger, SqliteLedger
from queen.ledger.words import Standing
from tests.support.redis_server import shared_server

_numbers = count()


class Reopened:
    """A ledger that is opened for every call and closed after it."""

    def __init__(self, open_it: Callable[[], Ledger], forget: Callable[[], None] = lambda: None) -> None:
        self._open, self.close = open_it, forget

    def __getattr__(self, name: str) -> Callable:
        def call(*args: object, **options: object) -> object:
            with closing(self._open()) as ledger:
                return getattr(ledger, name)(*args, **options)

        return call

    def each_standing(self) -> Iterator[Standing]:
        with closing(self._open()) as ledger:
            yield from ledger.each_standing()


def redis_ledger() -> RedisLedger:
    """An empty ledger on a server that all tests of this process share."""
    return RedisLedger(shared_server().url, prefix=f"test-{next(_numbers)}", timeout=30)


def redis_cluster_ledger() -> RedisLedger:
    """An empty ledger on a cluster that all tests of this process share."""
    return RedisLedger(shared_server(cluster=True).url, prefix=f"test-{next(_numbers)}", timeout=30)


def redis_reopened() -> Reopened:
    """As `redis_ledger`, with a new connection for every call."""
    prefix = f"reopened-{next(_numbers)}"
    return Reopened(lambda: RedisLedger(shared_server().url, prefix=prefix, timeout=30))


def sqlite_reopened() -> Reopened:
    """A file that is opened for every call."""
    memory = Path("/dev/shm")  # where there is one: a disk would wait for every commit
    folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    return Reopened(lambda: SqliteLedger(Path(folder.name) / "ledger.db"), folder.cleanup)


LEDGERS: dict[str, Callable[[], Ledger]] = {
    "memory": MemoryLedger,
    "sqlite": lambda: SqliteLedger(":memory:"),
    "redis": redis_ledger,
}
OTHER_WAYS: dict[str, Callable[[], Ledger]] = {
    "sqlite reopened": sqlite_reopened,
    "redis reopened": redis_reopened,
    "redis cluster": redis_cluster_ledger,
}
ALL_LEDGERS = LEDGERS | OTHER_WAYS
BAD_CLIENTS = [7, None, b"a", "", "a\0b", "x" * 257, "é" * 129, "\ud800"]


SHARE = 1.0 if os.environ.get("QUEEN_TESTS") == "long" else 0.3  # of the random streams


def on_random_streams(examples: Mapping[str, int], **strategies: SearchStrategy) -> Callable[[Callable], Callable]:
    """Make a test of a check(make, **drawn): for every named store, on that number of random streams.

    A store that shares its arithmetic with another, or is slow, needs fewer of them.
    """

    def decorate(check: Callable) -> Callable:
        @pytest.mark.parametrize("store", examples)
        def test(store: str) -> None:
            @settings(max_examples=ceil(SHARE * examples[store]), deadline=None, database=None, derandomize=True)
            @given(**strategies)
            def run(**drawn: object) -> None:
                check(ALL_LEDGERS[store], **drawn)

            run()

        return test

    return decorate


def records_and_coverage(ledger: Ledger, client: str) -> tuple[dict, dict]:
    return ledger.coverage(client), {k: v.tolist() for k, v in ledger.records(client).items()}


def run_threads(work: Callable[[int], None], count: int) -> None:
    """work(0), work(1), ... at the same time; returns when all are done."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
