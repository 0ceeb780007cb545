"""What an owner may set: what a client may see (`Limits`), shared budgets (`Group`), how to accuse (`Sentinel`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard

from queen.allowance import PERIODS, Allowance, check_allowance, read_allowance
from queen.errors import LimitsError, OptionError

MIN_RADIUS, MAX_RADIUS = 1e-6, 1e6  # beyond, positions on the ledger's grid or squared radii would no longer be exact
MAX_ANSWERS = 2**53  # beyond, a store that counts in floats would lose count
MAX_DIGITS = 6  # a float32 has no more
MIN_ALPHA = 1e-12  # beyond, wealth would overflow before it accuses
MAX_MARGIN = 10.0  # standard deviations; beyond, nobody could ever be accused
SCORES = ("energy", "distance", "confidence", "knn")
ON_ALARM = ("decoy", "reverse", "label-only", "refuse", "observe")
ON_SPENT = ("refuse", "decoy", "reverse", "label-only")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one client, or one group of clients, may see.

    `radius` is relative to the class's spread (rho = r / d), one number or one per class;
    `threshold` is the share t of the disc after which a class is spent;
    `extra_answers` is how many distinct honest answers outside the discs, or near a record, the sentinel gives.
    Both are for life if they are numbers; "2000/day" or "0.2/week" renew every hour, day, week or month (30 days, see
    `queen.allowance`). What is near an old record stays near it: a threshold per period limits the new area of it.
    """

    radius: float | tuple[float, ...] = 0.02
    threshold: float | str = 0.2
    extra_answers: int | str = 2000

    def __post_init__(self) -> None:
        radius = _plain(self.radius)
        radii = tuple(radius) if isinstance(radius, tuple | list) else (radius,)
        if not radii or not all(_is_number(r) and MIN_RADIUS <= r <= MAX_RADIUS for r in radii):
            raise LimitsError(f"radius must be a number from {MIN_RADIUS} to {MAX_RADIUS:g}, got {self.radius!r}")
        as_floats = tuple(float(r) for r in radii)
        object.__setattr__(self, "radius", as_floats if isinstance(radius, tuple | list) else as_floats[0])
        threshold = check_allowance(_plain(self.threshold), _is_share)
        if threshold is None:
            known = f'or one per period ({", ".join(PERIODS)}) such as "0.2/week"'
            raise LimitsError(f"threshold must be a finite number, not negative, {known}; got {self.threshold!r}")
        object.__setattr__(self, "threshold", threshold if isinstance(threshold, str) else float(threshold))
        extra = check_allowance(_plain(self.extra_answers), _is_count)
        if extra is None:
            known = f'or one per period ({", ".join(PERIODS)}) such as "2000/day"'
            raise LimitsError(
                f"extra_answers must be a whole number from 0 to 2^53, {known}; got {self.extra_answers!r}"
            )
        object.__setattr__(self, "extra_answers", extra)

    @cached_property
    def class_allowance(self) -> Allowance:
        """The share of the disc that may be seen of a class, for life or per period."""
        return read_allowance(self.threshold)

    @property
    def spends_classes(self) -> bool:
        """Whether a class can ever be spent: records at least rho apart cover at most (rho + 2)^2 of it in all."""
        radii = self.radius if isinstance(self.radius, tuple) else (self.radius,)
        return self.class_allowance.amount < (max(radii) + 2) ** 2

    @property
    def ends_for_life(self) -> bool:
        """Whether a class may be spent for ever though the extra answers renew."""
        renews = self.extra_allowance.period is not None
        return renews and self.class_allowance.period is None and self.spends_classes

    @cached_property
    def extra_allowance(self) -> Allowance:
        """How many extra answers there are, for life or per period."""
        return read_allowance(self.extra_answers)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A budget that many clients share, for example a tenant, a network prefix, everyone.

    `limits` are the group's own. Its coverage is enforced; its alarm is only reported unless `enforce_alarm`, since
    one thief could otherwise get all its neighbours accused.
    """

    limits: Limits
    enforce_alarm: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.limits, Limits):
            raise LimitsError(f"a group needs limits=Limits(...) of its own, got {type(self.limits).__name__}")
        if not isinstance(self.enforce_alarm, bool):
            raise OptionError(f"enforce_alarm must be True or False, got {self.enforce_alarm!r}")


@dataclass(frozen=True, kw_only=True)
class Sentinel:
    """How the policy `sentinel` accuses, and what it does then.

    `alpha`: with confidence 1 - `delta` over the calibration images, a benign client is ever accused with at most this
    probability. `scores`: what is measured of a query, any of energy, distance, confidence, knn; they share alpha
    equally. `margin`: by how many standard deviations of its class an honest client's score may exceed the usual; more
    tolerates more cameras, and more cover traffic of a thief.
    `on_alarm` and `on_spent` say how accused clients and clients without budget are answered; after `after_alarm`
    queries, the one that raised the alarm included, an accused client is refused in any case (None: never). Where there
    are `groups`, spent budgets are refused too. `digits`: answers are rounded to so many decimals
    (None: not at all). `groups` names the kinds of groups ("tenant" for "tenant:7") that `Guard.answer(groups=...)`
    accepts.
    """

    alpha: float = 1e-3
    delta: float = 0.05
    scores: tuple[str, ...] = ("energy", "distance", "knn")
    margin: float = 0.2
    on_alarm: str = "refuse"
    on_spent: str = "refuse"
    after_alarm: int | None = 2000
    digits: int | None = 2
    groups: Mapping[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("alpha", "delta"):
            value = _plain(getattr(self, name))
            if not (_is_number(value) and MIN_ALPHA <= value < 1):
                raise OptionError(f"{name} must be a number from {MIN_ALPHA:g} to below 1, got {value!r}")
            object.__setattr__(self, name, float(value))
        margin = _plain(self.margin)
        if not (_is_number(margin) and 0 <= margin <= MAX_MARGIN):
            raise OptionError(f"margin must be a number from 0 to {MAX_MARGIN:g}, got {margin!r}")
        object.__setattr__(self, "margin", float(margin))
        scores = self.scores
        if not isinstance(scores, tuple | list) or not all(isinstance(name, str) for name in scores):
            raise OptionError(f"scores must be a list of names, got {scores!r}")
        if not scores or len(set(scores)) != len(scores):
            raise OptionError(f"scores must be different names, at least one, got {scores!r}")
        object.__setattr__(self, "scores", tuple(scores))
        for name, value, known in (
            *(("score", score, SCORES) for score in self.scores),
            ("on_alarm", self.on_alarm, ON_ALARM),
            ("on_spent", self.on_spent, ON_SPENT),
        ):
            if value not in known:
                raise OptionError(f"no {name} '{value}'; known: {', '.join(known)}")
        for name, least, most in (("after_alarm", 0, MAX_ANSWERS), ("digits", 1, MAX_DIGITS)):
            value = _plain(getattr(self, name))
            if value is not None and not (_is_whole(value) and least <= value <= most):
                raise OptionError(f"{name} must be a whole number from {least} to {most}, or None, got {value!r}")
            object.__setattr__(self, name, value)
        if not isinstance(self.groups, Mapping):
            raise OptionError(f"groups must map kinds to Group(limits=...), got {type(self.groups).__name__}")
        for kind, group in self.groups.items():
            if not isinstance(kind, str) or not kind or ":" in kind or "\0" in kind or not isinstance(group, Group):
                raise OptionError(f"expected groups as kind (no colon) -> Group(limits=...), got {kind!r}: {group!r}")

    @property
    def tells_nothing(self) -> bool:
        """Whether accused clients and those without budget learn nothing about the model from what they get then."""
        return {self.on_alarm, self.on_spent} <= {"refuse", "decoy"}

    @property
    def share(self) -> float:
        """The alpha of one client or group: the client and every group whose alarm is enforced share it equally."""
        return self.alpha / (1 + sum(group.enforce_alarm for group in self.groups.values()))


def check_sentinel(settings: object) -> Sentinel:
    """The settings as they are, if they are a `Sentinel`; anything else is an error."""
    if not isinstance(settings, Sentinel):
        raise OptionError(f"sentinel must be queen.types.Sentinel, got {type(settings).__name__}")
    return settings


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as plain Python numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= sys.float_info.max


def _is_count(value: object) -> bool:
    return _is_whole(value) and 0 <= value <= MAX_ANSWERS


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# One record of so large a radius covers the whole disc of its class: whatever comes after it is near a record.
WHOLE_DISC = 5.0
NEVER_SPENT = 2 * WHOLE_DISC**2  # more than that record adds to the coverage of its class
SENTINEL_LIMITS = Limits(radius=WHOLE_DISC, threshold=NEVER_SPENT, extra_answers="10000/day")
"""The sentinel's, unless others are given: answers are counted, by the day, and no class is ever spent.

All but one a class, that is: smaller records would be answers that nobody counts, dozens in every class.

So a client that asks for little else than one class is no worse off than others (`Limits.spends_classes`).
docs/policies.md argues for the number."""


def default_limits(policy: str) -> Limits:
    """What a client may see under this policy where nobody has set limits."""
    return SENTINEL_LIMITS if policy == "sentinel" else Limits()
