"""How good a copy so many honest answers make: measured points, and what lies between them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np

from queen.errors import OptionError

End = Literal["agreement", "low", "high", "lucky"]
"""Which figure of a point: the mean of its seeds, the lowest, the highest, or what a luckier thief may get."""
EARLIER_EPOCHS = 12  # of a price that does not say how many


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """How well students copy the model from so many distinct honest answers.

    `images` names what was asked: "held-out", "training" or "foreign" images. `agreement` is the share of images, none
    of which a student was trained on, for which it names the same class as the model: the mean over the seeds of the
    better `network`, with the `low`est and the `high`est of them. `accuracy` is the same students' share of true
    labels, None where there are no labels. `label_only` students learned from the named class alone.
    """

    answers: int
    images: str
    label_only: bool
    agreement: float
    low: float
    high: float
    accuracy: float | None
    network: str

    @property
    def lucky(self) -> float:
        """As far above the highest seed as that is above the lowest: a few seeds do not show the luckiest thief."""
        return min(1.0, self.high + (self.high - self.low))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """All points, and how they were measured: at least so many steps and passes (`epochs`) a student, these seeds and
    networks, images to judge on (`judged`) and decimals of the answers (None: all)."""

    rows: tuple[PriceRow, ...]
    steps: int
    seeds: tuple[int, ...]
    networks: tuple[str, ...]
    judged: int
    digits: int | None
    epochs: int = EARLIER_EPOCHS

    def __post_init__(self) -> None:
        if not self.rows:
            raise OptionError("expected a price of at least one point, got none: measure it again")

    @property
    def smallest(self) -> int:
        """The fewest answers that were measured."""
        return min(row.answers for row in self.rows)

    @property
    def largest(self) -> int:
        """The most answers that were measured."""
        return max(row.answers for row in self.rows)

    def agreement_at(self, answers: float, end: End = "agreement") -> float:
        """The agreement of the best student that so many answers make, whatever its images and its kind of answers.

        Between points it is read off straight lines over the logarithm of the answers. More answers never make a worse
        copy, so a point below an earlier one is lifted to it. Fewer answers than measured are taken for the fewest
        that were, and more for the most: see `largest`.
        """
        logarithm = math.log(max(answers, 1))
        return max(float(np.interp(logarithm, xs, ys)) for xs, ys in self._lines[end])

    def answers_for(self, agreement: float, end: End = "lucky") -> int:
        """The most answers, of those measured, whose best student stays below this agreement; 0 if none does."""
        if self.agreement_at(self.smallest, end) >= agreement:
            return 0
        counts = range(self.smallest, self.largest + 1)
        return self.smallest + bisect_left(counts, agreement, key=lambda n: self.agreement_at(n, end)) - 1

    @cached_property
    def _lines(self) -> Mapping[End, list[tuple[list[float], list[float]]]]:
        """For each end, and each kind of images and answers: logarithms of the answers, and rising agreements."""
        kinds: dict[tuple[str, bool], list[PriceRow]] = {}
        for row in sorted(self.rows, key=lambda row: row.answers):
            kinds.setdefault((row.images, row.label_only), []).append(row)
        return {
            end: [
                ([math.log(row.answers) for row in rows], list(accumulate((getattr(row, end) for row in rows), max)))
                for rows in kinds.values()
            ]
            for end in get_args(End)
        }

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, with the points under "curve"."""
        facts = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"curve": facts.pop("rows"), **facts}


def read_curve(stored: Mapping[str, Any]) -> Curve:
    """The curve that `Curve.as_json` wrote."""
    try:
        facts = {name: _frozen(stored[name]) for name in ("steps", "seeds", "networks", "judged", "digits")}
        facts["epochs"] = stored.get("epochs", EARLIER_EPOCHS)
        return Curve(rows=tuple(PriceRow(**row) for row in stored["curve"]), **facts)
    except (KeyError, TypeError) as error:
        raise OptionError(f"expected a price as `queen price --json` writes it, got one without {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
