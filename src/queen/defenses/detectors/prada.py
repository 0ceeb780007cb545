"""PRADA: the distances from a client's queries to its earlier ones of the same class should look normal.

Benign queries come from a natural distribution, so that the smallest distance from each to those before it is close to
normally distributed; synthetic queries lie at regular distances. The score is 1 - W, W being the Shapiro-Wilk statistic
of these distances without those farther than three standard deviations from their mean (Juuti et al., EuroS&P 2019).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, Victim
from queen.defenses.detectors.base import FalseAlarms, QueryBatch, Scores, check_count, start_detector

# Royston's polynomials in 1 / sqrt(n) for the two largest weights (algorithm AS R94), lowest power first.
LARGEST = (0.0, 0.221157, -0.147981, -2.071190, 4.434685, -2.706056)
SECOND = (0.0, 0.042981, -0.293762, -1.752461, 5.682633, -3.582633)
FEWEST = 6  # numbers for which these polynomials hold


def shapiro_wilk(values: Scores) -> float:
    """The Shapiro-Wilk statistic W of at least six numbers: 1 where they look normal; also 1 where all are equal."""
    ordered = np.sort(values)
    apart = ordered - ordered.mean()
    squares = float(apart @ apart)
    if ordered[0] == ordered[-1]:
        return 1.0
    return float(_weights(len(ordered)) @ apart) ** 2 / squares


def _weights(count: int) -> Scores:
    """The weights (n,) of ordered numbers by Royston's approximation, antisymmetric and of length 1."""
    normal: Scores = ndtri((np.arange(1, count + 1) - 0.375) / (count + 0.25))
    length, unit = math.sqrt(normal @ normal), 1 / math.sqrt(count)
    largest, second = (
        normal[-place] / length + np.polynomial.polynomial.polyval(unit, powers)
        for place, powers in ((1, LARGEST), (2, SECOND))
    )
    rest = (length**2 - 2 * normal[-1] ** 2 - 2 * normal[-2] ** 2) / (1 - 2 * largest**2 - 2 * second**2)
    weights = normal / math.sqrt(rest)
    weights[[0, 1, -2, -1]] = -largest, -second, second, largest
    return weights


class GrowingSet:
    """Queries of one class that are new enough: farther from all others than most of them were when they came."""

    def __init__(self) -> None:
        self._members: Tensor | None = None
        self._bar = 0.0
        self._count, self._mean, self._squares = 1, 0.0, 0.0  # of the members' distances; the first one's is 0

    def add(self, x: Tensor) -> Scores:
        """The distance (n,) from each query (n, P) to the nearest member before it; NaN for the first of all."""
        joins = np.zeros(len(x), np.bool_)
        nearest = np.full(len(x), math.inf)
        if self._members is None:
            nearest[0], joins[0] = math.nan, True
        else:
            nearest = torch.cdist(x, self._members).amin(1).cpu().numpy()
        among = torch.cdist(x, x).cpu().numpy()
        for row in range(len(x)):
            if not joins[row] and nearest[row] > self._bar:
                joins[row] = True
                self._raise_bar(nearest[row])
            if joins[row]:
                np.minimum(nearest[row + 1 :], among[row, row + 1 :], out=nearest[row + 1 :])
        new = x[torch.from_numpy(joins).to(x.device)]
        self._members = new if self._members is None else torch.cat([self._members, new])
        return nearest

    def _raise_bar(self, distance: float) -> None:
        """The bar is the highest that mean minus standard deviation of the members' distances ever was."""
        self._count += 1
        gap = distance - self._mean
        self._mean += gap / self._count
        self._squares += gap * (distance - self._mean)
        self._bar = max(self._bar, self._mean - math.sqrt(self._squares / self._count))


class PradaWatch:
    """The growing sets of one client, and all smallest distances so far."""

    def __init__(self, least: int, every: int) -> None:
        self._least, self._every = least, every
        self._sets: dict[int, GrowingSet] = {}
        self._distances: list[float] = []

    def follow(self, batch: QueryBatch) -> Scores:
        """1 - W after every `every`-th distance, from the `least`-th on."""
        flat, labels = batch.x.flatten(1).double(), batch.labels.cpu().numpy()
        nearest = np.empty(len(labels))
        for label in np.unique(labels):
            rows: NDArray[np.intp] = np.flatnonzero(labels == label)
            nearest[rows] = self._sets.setdefault(int(label), GrowingSet()).add(flat[torch.from_numpy(rows)])
        scores = np.full(len(labels), -math.inf)
        for row in np.flatnonzero(~np.isnan(nearest)):
            self._distances.append(nearest[row])
            if len(self._distances) >= self._least and len(self._distances) % self._every == 0:
                scores[row] = 1 - shapiro_wilk(without_outliers(np.array(self._distances)))
        return scores


def without_outliers(values: Scores) -> Scores:
    """The numbers within three standard deviations of their mean."""
    near: Scores = values[np.abs(values - values.mean()) <= 3 * values.std()]
    return near


def build(
    victim: Victim,
    generator: torch.Generator,
    *,
    alpha: float = FalseAlarms.alpha,
    life: int | None = FalseAlarms.life,
    clients: int = FalseAlarms.clients,
    least: int = 100,
    every: int = 10,
) -> Endpoint:
    """Judge a client from `least` distances on (published: 100), after every `every`-th (published: each)."""
    check_count("least", least, FEWEST + 1)
    check_count("every", every)
    recipe = {"detector": "prada", "least": least, "every": every}
    wanted = FalseAlarms(alpha=alpha, life=life, clients=clients)
    return start_detector(victim, generator, lambda *_: partial(PradaWatch, least, every), wanted, recipe)


DEFENSE = Defense(build, keeps_label="always", needs=frozenset({"x", "calibration"}), stateful=True)
