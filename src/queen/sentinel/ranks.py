"""Ranks: where a query's score stands among the calibration scores of the same predicted class.

With n calibration scores s_1 .. s_n of a class, a query with score s has two ranks, from 0 (the most foreign) to n:

    bet = #{i : s_i >= s - margin * sigma},   count = #{i : s_i > s},   so that bet >= count,

`sigma` being the class's robust standard deviation, IQR / 1.35. The smaller one is exact (see `bets`), the larger one
is bet with: whatever ties and the margin do to a rank, they only make a bet smaller, and never its price.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queen.core.sensitivity import Floats

TOP = 0.3  # the twin looks only at scores that this share of the class's calibration scores exceeds


@dataclass(frozen=True)
class Ranks:
    """Ranks of n queries under S scores, as arrays (n, S).

    `bet` is the rank to bet with and `count` the one to remember. `above` says whether the score, as it is, exceeds the
    twin's floor.
    """

    bet: NDArray[np.int64]
    count: NDArray[np.int64]
    above: NDArray[np.bool_]


class Ranking:
    """The calibration scores of every class, sorted, and the twin's floor of each."""

    def __init__(self, labels: NDArray[np.int64], scores: Floats, spreads: Floats, classes: int, margin: float) -> None:
        """`labels` (n,) and `scores` (n, S) of the calibration images, `spreads` (classes, S) from `robust_spreads`."""
        self.sizes = np.bincount(labels, minlength=classes).astype(np.int64)
        self.top_sizes = np.zeros((classes, scores.shape[1]), np.int64)  # calibration scores above the floor
        self._shift = margin * spreads
        self._sorted: list[list[Floats]] = []
        self._lists: dict[int, tuple[list[list[float]], list[float], list[float]]] = {}  # the same for `rank_one`
        self._floors = np.full((classes, scores.shape[1]), np.inf)
        for k in range(classes):
            columns = np.sort(scores[labels == k], axis=0).T
            self._sorted.append([np.ascontiguousarray(column) for column in columns])
            above = int(TOP * self.sizes[k])
            for j, column in enumerate(columns):
                if above:
                    self._floors[k, j] = column[-above - 1]
                    self.top_sizes[k, j] = len(column) - np.searchsorted(column, column[-above - 1], side="right")

    def rank(self, labels: NDArray[np.int64], scores: Floats) -> Ranks:
        """The ranks of a batch: predicted classes (n,), scores (n, S)."""
        lowered = scores - self._shift[labels]
        bet, count = np.empty(scores.shape, np.int64), np.empty(scores.shape, np.int64)
        classes = set(labels.tolist())
        for k in classes:
            rows = np.flatnonzero(labels == k) if len(classes) > 1 else slice(None)
            for j, column in enumerate(self._sorted[k]):
                bet[rows, j] = len(column) - column.searchsorted(lowered[rows, j], side="left")
                count[rows, j] = len(column) - column.searchsorted(scores[rows, j], side="right")
        return Ranks(bet, count, scores > self._floors[labels])

    def rank_one(self, k: int, scores: list[float]) -> tuple[list[int], list[int], list[bool]]:
        """`bet`, `count` and `above` of one query of class k, by plain Python; see `Betting.lanes`."""
        of_class = self._lists.get(k)
        if of_class is None:
            columns = [column.tolist() for column in self._sorted[k]]
            of_class = self._lists[k] = columns, self._shift[k].tolist(), self._floors[k].tolist()
        columns, shift, floors = of_class
        n = int(self.sizes[k])
        bet = [n - bisect_left(column, s - m) for column, s, m in zip(columns, scores, shift, strict=True)]
        count = [n - bisect_right(column, s) for column, s in zip(columns, scores, strict=True)]
        return bet, count, [s > floor for s, floor in zip(scores, floors, strict=True)]


def robust_spreads(labels: NDArray[np.int64], scores: Floats, classes: int) -> Floats:
    """(classes, S) robust standard deviations IQR / 1.35 of every score in every class; 0 for a class without images.

    Stored with the calibration, so that every server shifts by the same numbers.
    """
    spreads = np.zeros((classes, scores.shape[1]))
    for k in np.unique(labels):
        low, high = np.quantile(scores[labels == k], [0.25, 0.75], axis=0)
        spreads[k] = (high - low) / 1.35
    return spreads
