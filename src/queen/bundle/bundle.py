"""Everything fitted: the model, its map and discs, the shadows, and how to use them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from queen.bundle.calibration import Calibration
from queen.bundle.report import budget
from queen.core.geometry import Geometry
from queen.core.inputs import tensors
from queen.core.mapping import MappingNet
from queen.core.shadows import HeadShadows, NetworkShadows, Shadows
from queen.core.split import Split
from queen.errors import CalibrationError, LimitsError, OptionError
from queen.options import Limits, Sentinel, check_sentinel, default_limits
from queen.policy import find_policy
from queen.recipe import Recipe
from queen.sentinel.bets import Betting, Test, share_of
from queen.sentinel.power import LONGEST, PLAIN, AlarmAfter
from queen.sentinel.scores import Reference
from queen.sentinel.statement import statement
from queen.types import Inputs

NO_CALIBRATION = (
    "policy 'sentinel' needs held-out images that did not train the model: protect(..., calibration=x), or "
    "calibration='train' to go without a certificate"
)
# Fields of `Sentinel` that are options of their own.
SHORTCUTS = ("alpha", "on_alarm", "on_spent", "after_alarm", "digits", "groups")
OPTIONS = ("policy", "observe", "limits", "keep_label", "draw", "input_range", "sentinel", *SHORTCUTS)

HALF = 0.5  # of the thieves with one kind of foreign images


@dataclass(frozen=True)
class Probe:
    """A random input with the model's features and logits for it, by which a model is recognised."""

    x: Inputs
    features: Tensor
    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A fitted defense: the model, its map and discs, the shadows, and how to use them."""

    split: Split
    mapping: MappingNet
    geometry: Geometry
    shadows: Shadows
    probe: Probe
    reference: Reference  # for the knn score
    limits: Limits = field(default_factory=Limits)
    policy: str = "paper"
    observe: bool = False
    keep_label: bool = False
    draw: int = 5
    sentinel: Sentinel = field(default_factory=Sentinel)
    recipe: Recipe | None = None
    class_names: tuple[str, ...] | None = None
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    input_range: tuple[float, float] | None = None
    calibration: Calibration | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_policy(self.policy)
        if self.policy == "sentinel" and self.calibration is None:
            raise CalibrationError(NO_CALIBRATION)
        check_sentinel(self.sentinel)
        classes = self.geometry.classes
        for name in ("observe", "keep_label"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.limits, Limits):
            raise LimitsError(f"limits must be queen.types.Limits, got {type(self.limits).__name__}")
        for limits in (self.limits, *(group.limits for group in self.sentinel.groups.values())):
            if isinstance(limits.radius, tuple) and len(limits.radius) != classes:
                raise OptionError(f"limits name {len(limits.radius)} radii, the model has {classes} classes")
        if self.class_names is not None and len(self.class_names) != classes:
            raise OptionError(f"{len(self.class_names)} class names given, the model has {classes} classes")
        span = self.input_range
        if span is not None and not (
            isinstance(span, tuple) and len(span) == 2 and -math.inf < span[0] <= span[1] < math.inf
        ):
            raise OptionError(f"input_range must be (smallest, largest) or None, got {span!r}")
        if (self.pixel_mean is None) != (self.pixel_std is None):
            raise OptionError("pixel_mean and pixel_std go together")
        if not isinstance(self.draw, int) or not 1 <= self.draw <= len(self.shadows):
            raise OptionError(f"draw must lie between 1 and the {len(self.shadows)} shadows, got {self.draw}")

    @cached_property
    def betting(self) -> Betting:
        """What turns scores of queries into bets, under the sentinel's settings."""
        return self._calibrated.betting(self.sentinel)

    @cached_property
    def test(self) -> Test:
        """The test that those bets are evidence in."""
        return self._calibrated.test(self.sentinel)

    @property
    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise CalibrationError("there is no evidence without calibration images")
        return self.calibration

    @property
    def digits(self) -> int | None:
        """To how many decimals answers are rounded; None: not at all. Only the sentinel rounds, unless it observes."""
        return self.sentinel.digits if self.policy == "sentinel" and not self.observe else None

    @property
    def statement(self) -> str:
        """The certificate: what is promised about false accusations."""
        used = self.calibration
        if used is None:
            return "No certificate: without calibration images nobody can be accused."
        trusted = used.trusted_under(self.sentinel)
        return statement(
            self.sentinel,
            certified=used.certified,
            conditions=used.conditions,
            trusted=trusted.clients if trusted else 0,
            started_over=bool(used.account),
        )

    def alarm_after(self, number: int = 1) -> AlarmAfter:
        """After how many queries the calibration's foreign images would be caught, as the `number`-th of a ledger."""
        return self._calibrated.alarm_after(self.sentinel, number=number)

    def account(self, number: int) -> dict[str, Any]:
        """What this calibration may spend of alpha as the `number`-th of a ledger; all share one delta."""
        test = self.test
        alpha = share_of(number, test.alpha)
        return {"name": test.account, "number": number, "alpha": alpha, "delta": test.delta}

    def weakness(self, number: int = 1) -> str | None:
        """Why the sentinel would not protect this model, if it would not catch plain foreign queries.

        `number` is this calibration's in its ledger: the more calibrations came before, the more proof it takes.
        """
        if self.policy != "sentinel" or self.calibration is None:
            return None
        plain = self.calibration.alarm_after(self.sentinel, [PLAIN], number=number).get(PLAIN)
        if plain is None or plain["median"] is not None or self.calibration.foreign is None:
            return None
        where, remedy = "", ""
        if number > 1:
            where = f" as calibration {number} of this ledger"
            remedy = ", or begin a new account (queen calibrate --start-over)"
        return (
            f"expected a sentinel that catches plain foreign queries ({self.calibration.foreign.name}) within "
            f"{LONGEST:,}, got one that catches {plain['caught']:.0%} of such thieves{where}: calibrate it on more "
            f"images, or with a smaller margin or other scores{remedy}"
        )

    def blind_spot(self) -> str | None:
        """Which kind of foreign images passes the sentinel, where it catches thieves with another kind."""
        if self.policy != "sentinel" or self.calibration is None:
            return None
        caught = self.calibration.caught_by_kind(self.sentinel)
        worst, best = min(caught, key=caught.__getitem__, default=""), max(caught.values(), default=0.0)
        if not caught or caught[worst] >= HALF or best < HALF:
            return None
        return (
            f"expected a sentinel that catches thieves with every kind of foreign images, got one that catches "
            f"{caught[worst]:.0%} of those who send {worst} within {LONGEST:,} queries (of others: {best:.0%}): to the "
            f"model {worst} is like its own images, so train it longer, or on such outliers too, or use other scores"
        )

    @cached_property
    def identity(self) -> str:
        """SHA-256 of what was fitted; stays the same when policy, limits or calibration change."""
        digest = hashlib.sha256()
        fitted = {k: t for k, t in guard_tensors(self).items() if not k.startswith("calibration.")}
        for name, tensor in sorted(fitted.items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def name_of(self, label: int) -> str:
        """A class's name, or its number."""
        return self.class_names[label] if self.class_names else str(label)

    def with_options(self, **changes: Any) -> Bundle:
        """The same fit with other options (`OPTIONS`), and a report that follows them."""
        unknown = sorted(set(changes) - set(OPTIONS))
        if unknown:
            raise OptionError(f"no option '{unknown[0]}'; known: {', '.join(OPTIONS)}")
        settings = {name: changes.pop(name) for name in SHORTCUTS if name in changes}
        if settings:
            changes["sentinel"] = replace(check_sentinel(changes.get("sentinel", self.sentinel)), **settings)
        policy = changes.get("policy", self.policy)
        if "limits" not in changes and policy != self.policy and self.limits == default_limits(self.policy):
            changes["limits"] = default_limits(policy)
        changed = replace(self, **changes)
        report = self.report
        if changed.policy != "sentinel" and "limits" not in changes and report.get("max_copy") is not None:
            raise LimitsError(
                f"expected limits for policy '{changed.policy}': those of this bundle come from max_copy and count "
                "extra answers alone, which no other policy than the sentinel does; give limits=Limits(...) too"
            )
        if "limits" in changes:  # the budgets in the report are those of the limits
            benign = self.calibration.benign if self.calibration else None
            report = report | budget(changed.limits, report, benign)
        if changed.limits != self.limits:
            report = report | {"max_copy": None}
        if changed.sentinel != self.sentinel:  # these were simulated with the other settings
            report = report | {name: {} for name in ("alarm_rates", "alarm_after") if name in report}
        return replace(changed, report=report)


def guard_tensors(bundle: Bundle) -> dict[str, Tensor]:
    """Every fitted tensor by name, but not the model's own weights; copies on the CPU that share no memory."""
    parts: dict[str, Tensor] = {f"map.{name}": t for name, t in bundle.mapping.state_dict().items()}
    for name in ("centres", "spreads", "feature_centres"):
        parts[f"geometry.{name}"] = getattr(bundle.geometry, name)
    if isinstance(bundle.shadows, NetworkShadows):
        for i, network in enumerate(bundle.shadows.networks):
            parts |= {f"shadow.{i}.{name}": t for name, t in network.state_dict().items()}
    elif isinstance(bundle.shadows, HeadShadows):
        parts |= {"shadows.weight": bundle.shadows.weight, "shadows.bias": bundle.shadows.bias}
    parts |= {f"probe.input.{name}": t for name, t in tensors(bundle.probe.x).items()}
    parts |= {"probe.features": bundle.probe.features, "probe.logits": bundle.probe.logits}
    parts |= {"reference.axes": bundle.reference.axes, "reference.coordinates": bundle.reference.coordinates}
    if bundle.calibration:
        for name in ("labels", "points", "scores", "spreads", "condition", "answers"):
            parts[f"calibration.{name}"] = getattr(bundle.calibration, name)
        if foreign := bundle.calibration.foreign:
            parts |= {"calibration.foreign.labels": foreign.labels, "calibration.foreign.scores": foreign.scores}
            parts |= {} if foreign.pictures is None else {"calibration.foreign.pictures": foreign.pictures}
    return {name: t.detach().cpu().contiguous().clone() for name, t in parts.items()}
