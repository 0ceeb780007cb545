"""Ranks, bets and wealth by their definition: one query, one purse and one number at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, isqrt

import numpy as np

STAKES = (0.2, 0.6)
MOST = 2**28 - 1  # bets of one class


def ranks_of(calibration: Sequence[float], score: float, shift: float) -> tuple[int, int]:
    """The rank to bet with, of the lowered score, and the rank to remember."""
    return sum(c >= score - shift for c in calibration), sum(c > score for c in calibration)


def floor_of(calibration: Sequence[float]) -> float:
    """The score that three in ten of the calibration scores exceed; none does if there are fewer than four."""
    most = int(0.3 * len(calibration))
    return sorted(calibration, reverse=True)[most] if most else float("inf")


def shapes_of(n: int, *, twin: bool) -> list[list[int]]:
    """q(0..n) of every shape."""
    top = [
        [int(r < max(1, ceil(share * (n + 1)))) for r in range(n + 1)]
        for share in ((0.1, 0.35) if twin else (0.1, 0.3))
    ]
    return top if twin else [*top, [isqrt(256 * (n + 1) // (r + 1)) for r in range(n + 1)]]


Lane = tuple[int, int, int, int]
"""n + 1 (0: no bet), Q, q of the rank to bet with, q of the rank to remember."""


def lanes_of(calibration: Sequence[float], score: float, shift: float) -> list[Lane]:
    """What is bet on one query under one score: three lanes, and two of the twin."""
    high = [c for c in calibration if c > floor_of(calibration)]
    lanes = []
    for among, twin in ((list(calibration), False), (high, True)):
        bet, count = ranks_of(among, score, shift)
        plays = len(among) > 0 and (not twin or score > floor_of(calibration))
        for q in shapes_of(len(among), twin=twin):
            lanes.append((len(q) if plays else 0, sum(q), q[bet], q[count]))
    return lanes


class Player:
    """A client with its purses, who plays query by query; `reached` is the first query that brought it to the bar."""

    def __init__(self, scores: int) -> None:
        self.scores = scores
        self.clocks = [[0] * 5 for _ in range(scores)]  # of every lane, though lanes of a score tick together
        self.purses = [[[0.0] * len(STAKES) for _ in range(5)] for _ in range(scores)]
        self.bets: dict[int, list[list[int]]] = {}  # of every class and lane: how many, and their sums of q
        self.sums: dict[int, list[list[int]]] = {}
        self.reached: int | None = None

    def play(self, number: int, label: int, lanes: Sequence[Sequence[Lane]], bar: float) -> None:
        """One query: its lanes for every score."""
        if self.reached is not None:
            return
        bets = self.bets.setdefault(label, [[0] * 5 for _ in range(self.scores)])
        sums = self.sums.setdefault(label, [[0] * 5 for _ in range(self.scores)])
        if bets[0][0] < MOST:
            for s in range(self.scores):
                for lane in range(5):
                    self._turn(s, lane, lanes[s][lane], bets[s], sums[s])
        for of_score in self.purses:
            total = 0.0
            for purse in (p for lane in of_score for p in lane):
                total += purse
            if total >= bar and self.reached is None:
                self.reached = number

    def _turn(self, s: int, lane: int, numbers: Lane, bets: list[int], sums: list[int]) -> None:
        size, total, bet, count = numbers
        if size == 0:
            return
        self.clocks[s][lane] += 1
        t = float(self.clocks[s][lane])
        money = 0.5 / (t * (t + 1)) + (0.5 if t == 1 else 0.0)
        unit = size / total
        for i, e in enumerate(STAKES):
            f = 1 - e + e * (unit * bet)
            mean = unit * (total + sums[lane]) / (size + bets[lane])
            den = 1 - e + e * (mean if mean > 1 else 1.0)
            with np.errstate(over="ignore"):
                self.purses[s][lane][i] = float(np.float32((self.purses[s][lane][i] + money) * (f / den)))
        bets[lane] += 1
        sums[lane] += count


def exact_factor(q: Sequence[int], stake: Fraction, bet: int, past: Sequence[int]) -> Fraction:
    """f / den without rounding: the rank bet with, and the ranks remembered of earlier bets in the same class."""
    n = len(q) - 1
    f = (1 - stake) + stake * Fraction(q[bet] * (n + 1), sum(q))
    mean = sum(((1 - stake) + stake * Fraction(q[j] * (n + 1), sum(q))) * (1 + past.count(j)) for j in range(n + 1))
    return f / (mean / (n + 1 + len(past)))
