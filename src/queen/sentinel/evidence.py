"""Evidence that a client is extracting the model: scores, p-values, bets, wealth.

A query that looks foreign gets a high score; its p-value says how rare such a score is among held-out images of the
same predicted class; a bet multiplies the client's wealth by `e * p^(e-1)`, which is below 1 on average for whoever
sends images like the held-out ones. So wealth that ever reaches 1 / alpha refutes, at level alpha (Ville), that the
client sends such images; that is what an accusation says, and all it says.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.core.sensitivity import Floats
from queen.errors import OptionError
from queen.options import SCORES, Sentinel
from queen.sentinel.bands import p_values
from queen.sentinel.sketch import Sketch

EXPONENTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NEIGHBOURS = 10
Bet = tuple[float, ...]
"""One factor per score and exponent, score by score; empty: no bet on this query."""


@dataclass(frozen=True)
class Bets:
    """What the ledger needs of a batch: a bet, a digest and a sketch per row, and when wealth is proof.

    `size` is the length of a full bet, `bar` the sum of wealth that accuses, `enforce` whether a client's alarm has
    consequences, and `test` identifies the test these bets belong to: wealth won in another one does not count.
    """

    factors: list[Bet]
    digests: list[int]
    sketches: list[Sketch]
    form: str
    size: int
    bar: float
    enforce: bool
    test: int = 0

    def take(self, rows: list[int]) -> Bets:
        """The bets of the chosen rows."""
        return replace(
            self,
            factors=[self.factors[i] for i in rows],
            digests=[self.digests[i] for i in rows],
            sketches=[self.sketches[i] for i in rows],
        )


def all_scores(features: Tensor, logits: Tensor, points: Tensor, reference: Tensor | None) -> Tensor:
    """Every known score (n, 4 or 3) of a batch, in the order of `SCORES`; knn needs a `reference`."""
    names, honest = SCORES if reference is not None else SCORES[:-1], logits.softmax(1)
    return torch.stack([score(name, features, logits, honest, points, reference) for name in names], 1)


def score(
    name: str, features: Tensor, logits: Tensor, honest: Tensor, points: Tensor, reference: Tensor | None
) -> Tensor:
    """One score (n,), high for foreign queries; `honest` is the softmax of the logits."""
    if name == "energy":  # -logsumexp(logits), from the softmax we have: four times as fast for a small batch
        return honest.amax(1).log_().sub_(logits.amax(1))
    if name == "distance":
        return points.float().square().sum(1).sqrt()
    if name == "confidence":
        return 1 - honest.amax(1)
    if reference is None:
        raise OptionError("score 'knn' needs reference features: protect(..., sentinel=Sentinel(scores=('knn',)))")
    likeness = torch.nn.functional.normalize(features) @ reference.T
    return -likeness.topk(min(NEIGHBOURS, len(reference)), dim=1).values[:, -1]


class Evidence:
    """The p-value of every score for every predicted class, from calibration scores; built once per guard."""

    def __init__(
        self,
        labels: NDArray[np.int64],
        scores: Floats,
        conditions: NDArray[np.int64],
        classes: int,
        settings: Sentinel,
    ) -> None:
        """`labels` and `conditions` (n,), `scores` (n, number of scores); each condition is certified separately."""
        self._factors: dict[float, Bet] = {}
        self._form = settings.form
        every = np.unique(conditions)
        if settings.truncate is not None and len(every) > 1:
            raise OptionError("truncated bets cannot certify several conditions: conditions_mode='mixture'")
        counts = np.stack([np.bincount(labels[conditions == c], minlength=classes) for c in every])
        pooled = counts.min(0) < settings.pool_below
        parts = [np.array([k]) for k in np.flatnonzero(~pooled)]
        self.parts = [*parts, np.flatnonzero(pooled)] if pooled.any() else parts
        delta = settings.delta / (len(self.parts) * len(every) * scores.shape[1])
        self.steps: list[list[_Steps]] = []  # score -> class -> p-values
        for column in scores.T:
            of_class: list[_Steps] = [_NO_BET] * classes
            for part in self.parts:
                chosen = np.isin(labels, part)
                sets = [np.sort(column[chosen & (conditions == c)]) for c in every]
                if settings.truncate:
                    steps = _Steps.truncated(sets[0], delta, settings.truncate)
                else:
                    steps = _Steps.worst(sets, delta)
                if max(self.factors(steps.values[-1]), default=0.0) > 1:  # else every bet would lose: place none
                    for k in part:
                        of_class[k] = steps
            self.steps.append(of_class)

    def bets(self, labels: Sequence[int], scores: Sequence[Sequence[float]]) -> list[Bet]:
        """The factors of every row; `scores` holds one list of n numbers per score."""
        if len(scores) == 1:
            of_class, factors = self.steps[0], self.factors
            return [factors(of_class[k].p(s)) for k, s in zip(labels, scores[0], strict=True)]
        columns = [
            [self.factors(of_class[k].p(s)) for k, s in zip(labels, column, strict=True)]
            for of_class, column in zip(self.steps, scores, strict=True)
        ]
        neutral = (1.0,) * len(EXPONENTS)  # a score that does not bet while another does
        return [
            tuple(f for bet in row for f in (bet or neutral)) if any(row) else () for row in zip(*columns, strict=True)
        ]

    def factors(self, p: float) -> Bet:
        """e * p^(e-1) for every exponent; empty where no bet is placed (p < 0)."""
        factors = self._factors.get(p)
        if factors is None:
            factors = self._factors[p] = tuple(e * p ** (e - 1) for e in EXPONENTS) if p > 0 else ()
        return factors

    @cached_property
    def test(self) -> int:
        """A number that differs between tests with different calibration images, scores or forms."""
        description = repr((self._form, [[(of.breaks, of.values) for of in of_class] for of_class in self.steps]))
        return int.from_bytes(hashlib.sha256(description.encode()).digest()[:8], "little", signed=True)

    def weak_classes(self) -> list[int]:
        """Predicted classes whose queries can never raise wealth: too few calibration images."""
        return [k for k in range(len(self.steps[0])) if all(of_class[k] is _NO_BET for of_class in self.steps)]

    @property
    def size(self) -> int:
        """The number of factors in a full bet."""
        return len(self.steps) * len(EXPONENTS)


@dataclass(frozen=True)
class _Steps:
    """A p-value as a falling step function of the score: values[i] for scores in (breaks[i-1], breaks[i]]."""

    breaks: list[float]
    values: list[float]

    def p(self, score: float) -> float:
        return self.values[bisect_left(self.breaks, score)]

    @classmethod
    def worst(cls, sets: list[Floats], delta: float) -> _Steps:
        """The largest p-value over several sorted sets of calibration scores: valid for each of them."""
        breaks = np.unique(np.concatenate(sets))
        below = [np.concatenate([[0], np.searchsorted(s, breaks, side="right")]) for s in sets]
        values = [p_values(len(s), delta)[len(s) - b] for s, b in zip(sets, below, strict=True)]
        return cls(breaks.tolist(), np.max(values, axis=0).tolist())

    @classmethod
    def truncated(cls, scores: Floats, delta: float, share: float) -> _Steps:
        """No bet (-1) up to the calibration score that a `share` of them exceeds; then the band of those above."""
        top = ceil(share * len(scores))
        if top < 2:
            return _NO_BET
        floor = scores[-top]
        steps = cls.worst([scores[scores > floor]], delta)
        return cls([float(floor), *steps.breaks], [-1.0, *steps.values])


_NO_BET = _Steps([], [-1.0])


def step(wealth: Sequence[float], factors: Bet, bets: int, form: str) -> tuple[list[float], float]:
    """Wealth after one more bet, and its sum in a fixed order; `bets` were placed before, and wealth starts at 0.

    Mixture: money comes in at every time t with weight .5 / (t (t + 1)), and half of all at t = 1, so that what is lost
    on benign-looking queries is no credit for later. Product: all comes at t = 1. Cusum: topped up to 1 every time.
    Only sums, products and comparisons, so that every store decides alike. A mixture never runs dry, since new money
    comes in for ever; a product does on a long benign stream.
    """
    grown, total = [], 0.0
    fresh = _fresh_money(bets + 1, form)
    for a, f in zip(wealth, factors, strict=True):
        stake = max(a, 1.0) if form == "cusum" else a + fresh
        grown.append(stake * f)
        total += stake * f
    return grown, total


def _fresh_money(time: int, form: str) -> float:
    if form == "mixture":
        return 0.5 / (time * (time + 1)) + (0.5 if time == 1 else 0.0)
    return 1.0 if time == 1 else 0.0


def first_alarm(bets: Sequence[Bet], form: str, size: int, bar: float) -> int | None:
    """The index of the bet that accuses a client who places these bets, or None: the ledger's arithmetic alone."""
    wealth, placed = [0.0] * size, 0
    for i, factors in enumerate(bets):
        if factors:
            wealth, total = step(wealth, factors, placed, form)
            placed += 1
            if total >= bar:
                return i
    return None


def statement(settings: Sentinel, *, certified: bool, mode: str, conditions: Sequence[str]) -> str:
    """What may be said about false accusations, in one sentence, for the settings chosen."""
    if not certified:
        return "No certificate: the sentinel was calibrated on images that trained the model."
    whom = "every benign client"
    if len(conditions) > 1:
        listed = ", ".join(conditions)
        whom += f" under any one of {listed}" if mode == "max" else f" whose images are a mixture like that of {listed}"
    confidence = f"With confidence {1 - settings.delta:g} over the calibration images, "
    if settings.form == "cusum":
        text = (
            f"{confidence}{whom} sends at least {1 / settings.share:g} queries on average before a false alarm; that "
            "it is ever accused is NOT bounded (form cusum)."
        )
    else:
        text = f"{confidence}{whom} is ever accused with probability at most {settings.alpha:g}."
        if settings.form == "product":
            text += " Good will is credit: benign-looking queries let a later attack run longer (form product)."
    if settings.pool_below:
        text += (
            f" Classes with fewer than {settings.pool_below} calibration images share a band: this does not hold for "
            "clients that send only some of those classes."
        )
    return text
