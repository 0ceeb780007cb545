"""What fitting measured, in plain numbers and in words, and the budgets that limits imply."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queen.core.certify import records_bound
from queen.core.sensitivity import Floats, inside, single_query_sensitivity
from queen.ledger import MemoryLedger
from queen.options import Limits
from queen.sentinel.power import AlarmAfter, in_words

DISC_MEAN = 0.463388  # of SQS^2 over the whole disc, where there is no image to average over


@dataclass(frozen=True)
class Benign:
    """Benign images as the guard sees them: predicted labels (n,), relative points (n, 2)."""

    labels: NDArray[np.int64]
    points: Floats

    @property
    def outside(self) -> float:
        """The share outside their class's disc."""
        return float(1 - inside(self.points).mean())


@dataclass
class Report:
    """What fitting measured; stored in the bundle as JSON."""

    classes: int
    training_images: int
    agreement: float
    outside: float
    spreads: list[float]
    mean_square_sensitivity: float
    shadow_kind: str
    shadow_accuracy: float
    shadow_confidence: float
    answers_per_class: list[int] = field(default_factory=list)
    records_per_class: list[int] = field(default_factory=list)
    honest_answers: int = 0
    calibration_images: int = 0
    calibration_outside: float | None = None
    calibration_first_spent: int | None = None
    calibration_first_refused: int | None = None
    alarm_rates: dict[str, float] = field(default_factory=dict)
    alarm_after: AlarmAfter = field(default_factory=dict)
    model: str = ""  # what is special about the model
    foreign: str = ""  # what `alarm_after` was measured with
    traffic: str = ""  # what recorded traffic was used for
    price: dict[str, Any] | None = None  # what a copy costs, as `queen.price.curve` writes it
    max_copy: float | None = None  # what copies the limits were chosen against
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The report in words."""
        if self.model:
            yield f"model: {self.model}"
        yield f"map: {self.agreement:.1%} of {self.training_images} training images are nearest to their own centre"
        low, high = min(self.answers_per_class), max(self.answers_per_class)
        about = f"{low}" if low == high else f"{low} to {high}"
        most = max(self.records_per_class)
        yield f"budget: about {about} records per class (never above {most}), each a new honest answer inside its disc"
        if self.traffic:
            yield f"sentinel: {self.traffic}"
        if self.alarm_rates:
            rates = ", ".join(f"{name} {rate:.0%}" for name, rate in self.alarm_rates.items())
            yield f"sentinel: share of 50 simulated benign clients accused: {rates}"
        if self.alarm_after:
            yield f"sentinel: how soon thieves with {self.foreign} are caught, alone or beside benign images (cover)"
            yield from (f"  {line}" for line in in_words(self.alarm_after))
        benign = self.outside if self.calibration_outside is None else self.calibration_outside
        which = "training" if self.calibration_outside is None else "held-out"
        yield f"cost: {benign:.1%} of {which} images lie outside their class's disc"
        yield (
            f"shadows: {self.shadow_kind}, {self.shadow_accuracy:.1%} right on training images at a mean confidence of "
            f"only {self.shadow_confidence:.1%} (weak on purpose)"
        )
        yield from (f"warning: {warning}" for warning in self.warnings)


def mean_square_sensitivity(train: Benign) -> float:
    """Mean SQS^2 of the images inside their discs: what one record adds to CQS, in units of rho^2."""
    within = inside(train.points)
    distances = np.hypot(*train.points[within].T)
    return float(np.square(single_query_sensitivity(distances)).mean()) if within.any() else DISC_MEAN


def budget(limits: Limits, report: dict[str, Any], calibration: Benign | None) -> dict[str, Any]:
    """The fields of a report that depend on the limits: answers per class, and when a benign client is cut off.

    Of what renews, all numbers are for one window.
    """
    threshold, most_extra = limits.class_allowance.amount, int(limits.extra_allowance.amount)
    radii = limits.radius if isinstance(limits.radius, tuple) else (limits.radius,) * report["classes"]
    first_spent = first_refused = None
    if calibration is not None:
        judgement = MemoryLedger().judge("benign", calibration.labels, calibration.points, limits)
        letters = np.array(list(judgement.letters))
        extra = np.isin(letters, ["A", "D"]).cumsum() > most_extra
        first_spent, first_refused = _first(judgement.spent), _first(judgement.spent | extra)
    records = [records_bound(r, threshold) for r in radii]
    estimates = [math.ceil(threshold / (r * r * report["mean_square_sensitivity"])) for r in radii]
    return {
        "answers_per_class": [min(bound, max(1, about)) for about, bound in zip(estimates, records, strict=True)],
        "records_per_class": records,
        "honest_answers": sum(records) + most_extra,
        "calibration_first_spent": first_spent,
        "calibration_first_refused": first_refused,
    }


def _first(flags: NDArray[np.bool_]) -> int | None:
    """The index of the first flag that is set."""
    return int(flags.argmax()) if flags.any() else None
