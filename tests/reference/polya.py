"""Polya bets by their definition: one query, one score and one shape after the other, in plain floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, sqrt

import numpy as np

Shape = Callable[[int, int], float]  # rank and n -> g, of mean 1 over the ranks 0..n


def top(share: float) -> Shape:
    """All or nothing on this share of the highest ranks."""

    def g(rank: int, n: int) -> float:
        winning = max(1, ceil(share * (n + 1)))
        return (n + 1) / winning if rank < winning else 0.0

    return g


def power(rank: int, n: int) -> float:
    """u^(-1/2) in whole sixteenths, normalised."""
    units = [floor(16 * sqrt((n + 1) / (r + 1))) for r in range(n + 1)]
    return units[rank] * (n + 1) / sum(units)


SHAPES, TWIN_SHAPES, STAKES = (top(0.1), top(0.3), power), (top(0.1), top(0.35)), (0.2, 0.6)


@dataclass
class Purse:
    """One score (or its twin), shape and stake: A, the time, and per class the earlier f's at their strict ranks."""

    shape: Shape
    stake: float
    money: float = 0.0
    time: int = 0
    before: dict[int, list[float]] = field(default_factory=dict)

    def bet(self, label: int, rank: int, strict: int, n: int) -> None:
        """A <- (A + w_t) f / den."""
        if n == 0:
            return
        self.time += 1
        self.money += 0.5 / (self.time * (self.time + 1)) + (0.5 if self.time == 1 else 0.0)
        past = self.before.setdefault(label, [])
        mean = (n + 1 + sum(past)) / (n + 1 + len(past))
        self.money *= self._f(rank, n) / mean
        past.append(self._f(strict, n))

    def _f(self, rank: int, n: int) -> float:
        return 1 - self.stake + self.stake * self.shape(rank, n)


def mean_wealth(
    known_labels: Sequence[int],
    known: np.ndarray,
    labels: Sequence[int],
    scores: np.ndarray,
    margin: float,
) -> Iterator[float]:
    """The mean over all purses after each query; `known` (n, S) are calibration scores, `scores` (m, S) a client's."""
    columns = range(known.shape[1])
    plain = [[Purse(shape, stake) for shape in SHAPES for stake in STAKES] for _ in columns]
    twins = [[Purse(shape, stake) for shape in TWIN_SHAPES for stake in STAKES] for _ in columns]
    for label, row in zip(labels, scores, strict=True):
        for column in columns:
            of_class = sorted(known[np.asarray(known_labels) == label, column].tolist())
            low, high = np.quantile(of_class, [0.25, 0.75]) if of_class else (0.0, 0.0)
            lowered = row[column] - margin * (high - low) / 1.35
            above = int(0.3 * len(of_class))
            limit = of_class[-above - 1] if above else np.inf
            for purses, rivals, bets in (
                (plain[column], of_class, True),
                (twins[column], [s for s in of_class if s > limit], row[column] > limit),
            ):
                rank, strict = sum(s >= lowered for s in rivals), sum(s > lowered for s in rivals)
                for purse in purses if bets else ():
                    purse.bet(label, rank, strict, len(rivals))
        purses = [purse for group in (*plain, *twins) for purse in group]
        yield sum(purse.money for purse in purses) / len(purses)
