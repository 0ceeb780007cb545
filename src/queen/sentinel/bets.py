"""Bets: how much a rank speaks for theft, in units that let every store count with whole numbers.

A shape gives every rank r = 0..n a whole number q(r), falling in r, with sum Q over all ranks; the bet is

    f = (1 - eps) + eps g(r),   g(r) = q(r) (n + 1) / Q,   which has mean 1 over the n + 1 ranks.

If calibration images and queries of a class are exchangeable, then, given the client's N earlier queries of that class,
the next rank is j with probability (1 + how often j came before) / (n + 1 + N): a Polya urn. So the exact mean of f is

    den = (1 - eps) + eps (n + 1) / Q * (Q + sum of q over the N earlier queries) / (n + 1 + N),

and f / den is a fair bet whatever the calibration set. Ties and the margin err on the client's side: f takes the larger
rank of `ranks`, the sum the smaller one, so wealth is never more than that of the fair bet on the smaller rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queen.core.sensitivity import Floats
from queen.sentinel.ranks import Ranking
from queen.sentinel.sketch import Sketch

Ints = NDArray[np.int64]
UNIT = 16  # of the power shape: finer units would change bets by less than one in a hundred

STAKES = (0.2, 0.6)
ARRAYS = ("size", "total", "bet", "count")  # of `Bets`, (n, lanes) each


def _top(share: float) -> Callable[[int], Ints]:
    """All or nothing on the given share of the highest ranks."""
    return lambda n: (np.arange(n + 1) < max(1, ceil(share * (n + 1)))).astype(np.int64)


def _power(n: int) -> Ints:
    """u^(-1/2) with u = (r + 1) / (n + 1), rounded down to whole 1/16."""
    squares = UNIT * UNIT * (n + 1) // np.arange(1, n + 2)
    return np.floor(np.sqrt(squares)).astype(np.int64)


SHAPES: tuple[Callable[[int], Ints], ...] = (_top(0.1), _top(0.3), _power)
TWIN_SHAPES: tuple[Callable[[int], Ints], ...] = (_top(0.1), _top(0.35))
LANES = len(SHAPES) + len(TWIN_SHAPES)  # per score: a lane is one shape of a score, or of the score's twin


@lru_cache(maxsize=4096)
def shape_table(lane: int, n: int) -> tuple[Ints, int]:
    """q(r) for r = 0..n of a lane (a shape of the score, then of its twin), and the sum Q."""
    numbers = (*SHAPES, *TWIN_SHAPES)[lane](n)
    numbers.flags.writeable = False
    return numbers, int(numbers.sum())


@dataclass(frozen=True)
class Test:
    """What the bets of a guard are evidence in: an identity, an account, and when wealth is proof.

    `id` hashes the inputs of the test; wealth won in another one does not count here. Every further calibration that a
    ledger sees under the same `account` spends less of the risk `alpha` times `delta`, so that all together spend no
    more than that. `least` is wealth that must be reached in any case (above all that trusted clients reached).
    """

    __test__ = False  # not a test for pytest to collect

    id: int
    scores: int
    alpha: float
    delta: float
    account: str = ""
    least: float = 0.0

    def bar(self, number: int) -> float:
        """The sum of a score's purses that accuses, for the `number`-th calibration of a ledger, counted from 1.

        As if all other scores had won nothing: every score is a test of its own, and they share alpha delta equally.
        """
        return self.size * max(1.0 / share_of(number, self.alpha * self.delta), self.least)

    @property
    def size(self) -> int:
        """How many numbers wealth consists of."""
        return self.scores * LANES * len(STAKES)


def share_of(number: int, whole: float) -> float:
    """What the `number`-th calibration spends of the whole risk: 6 / (pi^2 number^2) of it, in all 1."""
    return whole * 6.0 / (9.869604401089358 * number * number)


@dataclass(frozen=True)
class Bets:
    """What the ledger needs of a batch: per row a digest, a sketch and the lanes' numbers, and the test they are for.

    Arrays (n, lanes), lane by lane for each score: `size` is n + 1 of the row's class, 0 where no bet is placed;
    `total` is Q; `bet` is q of the rank to bet with, `count` q of the one to remember, which prices later bets.
    `enforce`: whether an alarm has consequences. `after_alarm`: queries of an accused client until it is cut off.
    """

    size: Ints
    total: Ints
    bet: Ints
    count: Ints
    digests: list[int]
    sketches: list[Sketch]
    test: Test
    enforce: bool
    after_alarm: float = inf

    def take(self, rows: list[int]) -> Bets:
        """The bets of the chosen rows."""
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in ARRAYS}
        lists: dict[str, Any] = {name: [getattr(self, name)[i] for i in rows] for name in ("digests", "sketches")}
        return replace(self, **arrays, **lists)

    @staticmethod
    def join(parts: Sequence[Bets]) -> Bets:
        """The bets of several batches in one test, one after the other."""
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
        lists: dict[str, Any] = {
            name: [one for part in parts for one in getattr(part, name)] for name in ("digests", "sketches")
        }
        return replace(parts[0], **arrays, **lists)


class Betting:
    """Turns scores into the numbers of bets, by comparing them with calibration scores; built once per guard."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        classes, scores = ranking.top_sizes.shape
        of_score = np.broadcast_to(ranking.sizes[:, None, None], (classes, scores, len(SHAPES)))
        of_twin = np.broadcast_to(ranking.top_sizes[:, :, None], (classes, scores, len(TWIN_SHAPES)))
        self._last = np.concatenate([of_score, of_twin], axis=2)  # (classes, S, LANES): n, the last rank
        self._total = np.zeros_like(self._last)
        self._start = np.zeros_like(self._last)  # where the table of this class and lane begins in `_tables`
        tables: list[Ints] = []
        starts: dict[tuple[int, int], int] = {}
        for (k, j, lane), n in np.ndenumerate(self._last):
            numbers, total = shape_table(lane, int(n))
            if (lane, n) not in starts:
                starts[lane, n] = sum(len(table) for table in tables)
                tables.append(numbers)
            self._start[k, j, lane], self._total[k, j, lane] = starts[lane, n], total
        self._tables = np.concatenate(tables)
        self._numbers: list[int] = self._tables.tolist()
        self._lists: dict[int, tuple[list[list[int]], list[list[int]], Ints]] = {}  # by class, for single queries

    def lanes(self, labels: Ints, scores: Floats) -> tuple[Ints, Ints, Ints, Ints]:
        """`size`, `total`, `bet` and `count` (n, S * LANES) of a batch: predicted classes (n,), scores (n, S)."""
        if len(labels) == 1:
            return self._lanes_of_one(int(labels[0]), scores[0].tolist())
        ranks = self._ranking.rank(labels, scores)
        last, start = self._last[labels], self._start[labels]
        bet = self._tables[start + np.minimum(ranks.bet[:, :, None], last)]
        count = self._tables[start + np.minimum(ranks.count[:, :, None], last)]
        size = np.where(last > 0, last + 1, 0)
        size[:, :, len(SHAPES) :] *= ranks.above[:, :, None]
        flat = len(labels), -1
        return size.reshape(flat), self._total[labels].reshape(flat), bet.reshape(flat), count.reshape(flat)

    def _lanes_of_one(self, k: int, scores: list[float]) -> tuple[Ints, Ints, Ints, Ints]:
        """The same for one query of class k, by plain Python: after a network has run, calls to numpy are slow."""
        of_class = self._lists.get(k)
        if of_class is None:
            of_class = self._lists[k] = self._last[k].tolist(), self._start[k].tolist(), self._total[k].reshape(1, -1)
        lasts, starts, total = of_class
        bet_ranks, count_ranks, above = self._ranking.rank_one(k, scores)
        size, bet, count = [], [], []
        for j, (of_last, of_start) in enumerate(zip(lasts, starts, strict=True)):
            for lane, (last, start) in enumerate(zip(of_last, of_start, strict=True)):
                size.append(last + 1 if last and (lane < len(SHAPES) or above[j]) else 0)
                bet.append(self._numbers[start + min(bet_ranks[j], last)])
                count.append(self._numbers[start + min(count_ranks[j], last)])
        return np.array([size]), total, np.array([bet]), np.array([count])
