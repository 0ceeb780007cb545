"""How long the server works on a request, measured before the first client asks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from queen.core import inputs
from queen.guard import Guard
from queen.ledger import Ledger
from queen.serve.batcher import Batcher
from queen.serve.types import Caller, Query, ServeError
from queen.types import Inputs

WARM_UP = 5  # requests that do not count: a network is slow at first
ROUNDS, PAUSE = 5, 0.05  # of which the quietest counts, and seconds between two: a start may be busy
SINGLES, LARGE_REQUESTS, LARGE_ROWS = 40, 10, 16  # requests of one row in each round, and requests of LARGE_ROWS rows
COMMITS = 4  # in each round
JITTER = 4  # medians: what takes longer was held up by something else than how it was judged
RECORD = 1e-4  # seconds that a durable ledger needs to record one more row
LIMIT = 0.2  # seconds after which no more of a kind are sent in a round


@dataclass(frozen=True)
class WorkTime:
    """Seconds from a request's arrival until its answer is ready: 99 of 100 take no longer than `of` says."""

    median: float  # one row
    one_row: float  # one row, 99th percentile, unless the machine was so busy that it says nothing
    each_more: float  # what every further row adds

    def of(self, rows: int) -> float:
        """Seconds that a request of so many rows takes at most."""
        return self.one_row + (rows - 1) * self.each_more


async def measure_work(guard: Guard, *, uniform: bool) -> WorkTime:
    """Send requests through a queue, a model and a ledger like the server's, which are thrown away.

    Every request is a client's first, which is the kind that takes longest. What the server's own ledger needs to
    commit is measured with writes that change nothing.
    """
    batcher = Batcher(guard.fresh(), uniform=uniform)
    batcher.start()
    try:
        rounds = [await _measure_round(batcher, guard, number) for number in range(ROUNDS)]
        return min(rounds, key=lambda work: work.one_row)
    finally:
        await asyncio.to_thread(batcher.close)


async def _measure_round(batcher: Batcher, guard: Guard, number: int) -> WorkTime:
    """What one short round says, after a pause."""
    await asyncio.sleep(PAUSE if number else 0)
    single = await _times(batcher, guard, 1, SINGLES, f"in round {number}")
    large = await _times(batcher, guard, LARGE_ROWS, LARGE_REQUESTS, f"in round {number}")
    commit = await asyncio.to_thread(_commit_times, guard.ledger)
    median, rarely_more = (float(np.quantile(single, q) + np.quantile(commit, q)) for q in (0.5, 0.99))
    each_more = float(np.median(large) - np.median(single)) / (LARGE_ROWS - 1)
    return WorkTime(median, min(rarely_more, JITTER * median), RECORD + max(0.0, each_more))


async def _times(batcher: Batcher, guard: Guard, rows: int, count: int, named: str) -> list[float]:
    """Seconds that each of `count` requests took, or of as many as there is time for."""
    query = Query(inputs.join([_row(guard)] * rows), rows)
    groups = tuple(f"{kind}:{rows} {named}" for kind in guard.bundle.sentinel.groups)
    seconds: list[float] = []
    end = time.perf_counter() + LIMIT
    while len(seconds) < WARM_UP + count and (len(seconds) < 2 or time.perf_counter() < end):
        start = time.perf_counter()
        with contextlib.suppress(ServeError):  # to refuse a row takes as long
            await batcher.submit(query, Caller(f"client {len(seconds)} of {rows} {named}", groups))
        seconds.append(time.perf_counter() - start)
    return seconds[min(WARM_UP, len(seconds) // 2) :]


def _row(guard: Guard) -> Inputs:
    """A row that the model takes."""
    x, span = guard.bundle.probe.x, guard.bundle.input_range
    return inputs.take(x.clamp(*span) if isinstance(x, Tensor) and span else x, slice(0, 1))


def _commit_times(ledger: Ledger) -> list[float]:
    seconds: list[float] = []
    end = time.perf_counter() + LIMIT
    while len(seconds) < COMMITS and (not seconds or time.perf_counter() < end):
        start = time.perf_counter()
        ledger.check()
        seconds.append(time.perf_counter() - start)
    return seconds
