"""What a ledger is for: its records are points on the maps of one bundle, and mean nothing to any other.

The ledger's fact `binding` lists the bundles that may use it. The first one binds it; every other is refused until an
operator says that it may take the ledger over (`rebind`). Bundles on the list share their maps and radii, so that
records of two maps never mix in one coverage; they differ only in the account that their calibrations spend from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from queen.bundle.bundle import Bundle
from queen.errors import BindingError
from queen.ledger.base import BINDING, UNFINISHED, Ledger

SAME_RADIUS = 1e-6  # relative; less is rounding
WAYS_OUT = (
    "Give this bundle a ledger of its own (another file, or another Redis database), go back to the bundle "
    "that the ledger is for, or take the ledger over: queen ledger rebind BUNDLE --ledger LEDGER"
)


@dataclass(frozen=True)
class Binding:
    """What a ledger remembers of a bundle: its identity, its number of classes, its radii and its account.

    Policy, threshold, extra answers, alpha and whatever else may change from one start to the next is left out.
    """

    bundle: str  # `Bundle.identity`, which recalibration leaves alone
    classes: int
    radius: float | tuple[float, ...]
    account: str  # that calibrations spend alpha from; their ids are in the ledger's list of tests

    @property
    def name(self) -> str:
        """The bundle as operators see it in the log of events."""
        return f"bundle {self.bundle[:12]}"

    def __str__(self) -> str:
        """For messages."""
        radius = self.radius if isinstance(self.radius, float) else f"by class ({min(self.radius)} and more)"
        account = f"account '{self.account}'" if self.account else "the first account"
        return f"{self.name} ({self.classes} classes, radius {radius}, {account})"

    def shares_maps(self, other: Binding) -> bool:
        """Whether a record means the same to both: the same point of the same disc."""
        return (self.bundle, self.classes) == (other.bundle, other.classes)

    def shares_records(self, other: Binding) -> bool:
        """Whether both may record in one ledger at the same time: their records are also equally wide."""
        return self.shares_maps(other) and all(
            math.isclose(ours, theirs, rel_tol=SAME_RADIUS)
            for ours, theirs in zip(self._radii(), other._radii(), strict=True)
        )

    def accepts(self, other: Binding) -> bool:
        """Whether a ledger that is bound to this may be used by the other."""
        return self.shares_records(other) and self.account == other.account

    def _radii(self) -> tuple[float, ...]:
        return self.radius if isinstance(self.radius, tuple) else (self.radius,) * self.classes


def binding_of(bundle: Bundle) -> Binding:
    """What a ledger must be bound to for this bundle."""
    calibration = bundle.calibration
    account = calibration.account if calibration else ""
    return Binding(bundle.identity, bundle.geometry.classes, bundle.limits.radius, account)


def bind(ledger: Ledger, binding: Binding) -> bool:
    """Bind a ledger that is not bound yet, and return whether it was not; `BindingError` if it is for another bundle.

    Of several that come at the same time one is the first, and the others are compared with it.
    """
    text = ledger.fact(BINDING)
    is_new = text is None
    if text is None:
        own = _to_text([binding])
        text = ledger.set_fact(BINDING, own, replace=False)
        is_new = text == own
    _refuse_another(text, binding)
    return is_new


def is_open_to(ledger: Ledger, identity: str) -> bool:
    """Whether a ledger is not bound yet, or to a bundle of this identity, whatever its radii; writes nothing."""
    text = ledger.fact(BINDING)
    try:
        return text is None or any(one.bundle == identity for one in _from_text(text))
    except BindingError:
        return False


def _refuse_another(text: str, binding: Binding) -> None:
    accepted = _from_text(text)
    if not any(one.accepts(binding) for one in accepted):
        expected = " or ".join(map(str, accepted))
        raise BindingError(f"the ledger is for another bundle: expected {expected}, got {binding}. {WAYS_OUT}")


@dataclass(frozen=True)
class Rebound:
    """What came of a take-over: whether anything changed, whether coverage is gone, and who may use the ledger now."""

    changed: bool
    forgot_coverage: bool
    accepted: tuple[Binding, ...]


def rebind(ledger: Ledger, binding: Binding, actor: str) -> Rebound:
    """Let a bundle take a ledger over, whatever it was for; `actor` is who says so, for the log of events.

    A bundle with the same maps and radii joins those that use the ledger already. With other radii it replaces them,
    and coverage stays as it was counted. With other maps it replaces them too, and coverage and records are forgotten:
    they are points on maps that nobody asks any more. Alarms, evidence, budgets and counts stay in every case.
    """
    text = ledger.fact(BINDING)
    try:
        accepted = _from_text(text) if text is not None else []
        is_known = True
    except BindingError:  # unfinished, or of another version: whatever has been recorded may be of any map
        accepted, is_known = [], False
    if any(one.accepts(binding) for one in accepted):
        return Rebound(changed=False, forgot_coverage=False, accepted=tuple(accepted))
    joins = all(one.shares_records(binding) for one in accepted)
    forget = not is_known or not all(one.shares_maps(binding) for one in accepted)
    accepted = [*accepted, binding] if joins else [binding]
    ledger.rebind(_to_text(accepted), actor, name=binding.name, forget_coverage=forget)
    return Rebound(changed=True, forgot_coverage=forget, accepted=tuple(accepted))


def _to_text(accepted: Sequence[Binding]) -> str:
    return json.dumps([asdict(one) for one in accepted])


def _from_text(text: str) -> list[Binding]:
    if text.startswith(UNFINISHED):
        taker = _from_text(text.removeprefix(UNFINISHED))[-1]
        raise BindingError(
            f"the ledger is being taken over by {taker}, or that was interrupted: wait, or run queen ledger rebind "
            "BUNDLE --ledger LEDGER again, with that bundle or with the bundle that shall use the ledger"
        )
    try:
        return [Binding(**(stored | {"radius": _plain_radius(stored["radius"])})) for stored in json.loads(text)]
    except (ValueError, TypeError, KeyError) as error:
        raise BindingError(
            f"cannot read what the ledger is for, got {text[:100]!r}: was it written by a newer version of queen? "
            "Update queen, or take the ledger over: queen ledger rebind BUNDLE --ledger LEDGER"
        ) from error


def _plain_radius(stored: Any) -> float | tuple[float, ...]:
    return tuple(map(float, stored)) if isinstance(stored, list) else float(stored)
