"""Everything fitted: the model, its map and discs, the shadows, and how to use them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from queen.core.geometry import Geometry
from queen.core.inputs import tensors
from queen.core.mapping import MappingNet
from queen.core.shadows import HeadShadows, NetworkShadows, Shadows
from queen.core.split import Split
from queen.policy import find_policy
from queen.report import Benign, budget
from queen.types import Inputs, Limits, LimitsError, OptionError
from queen.zoo import Recipe

OPTIONS = ("policy", "observe", "limits", "keep_label", "draw")


@dataclass(frozen=True)
class Calibration:
    """Held-out benign images as the guard sees them: predicted labels (n,), relative points (n, 2)."""

    labels: Tensor
    points: Tensor

    @property
    def benign(self) -> Benign:
        """The same as arrays, for counting."""
        return Benign(self.labels.cpu().numpy(), self.points.cpu().numpy())


@dataclass(frozen=True)
class Probe:
    """A random input and what the model made of it, to recognise the model again."""

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
    limits: Limits = field(default_factory=Limits)
    policy: str = "paper"
    observe: bool = False
    keep_label: bool = False
    draw: int = 5
    recipe: Recipe | None = None
    class_names: tuple[str, ...] | None = None
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    calibration: Calibration | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_policy(self.policy)
        classes = self.geometry.classes
        for name in ("observe", "keep_label"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.limits, Limits):
            raise LimitsError(f"limits must be queen.types.Limits, got {type(self.limits).__name__}")
        if isinstance(self.limits.radius, tuple) and len(self.limits.radius) != classes:
            raise OptionError(f"limits name {len(self.limits.radius)} radii, the model has {classes} classes")
        if self.class_names is not None and len(self.class_names) != classes:
            raise OptionError(f"{len(self.class_names)} class names given, the model has {classes} classes")
        if (self.pixel_mean is None) != (self.pixel_std is None):
            raise OptionError("pixel_mean and pixel_std go together")
        if not isinstance(self.draw, int) or not 1 <= self.draw <= len(self.shadows):
            raise OptionError(f"draw must lie between 1 and the {len(self.shadows)} shadows, got {self.draw}")

    @cached_property
    def identity(self) -> str:
        """SHA-256 of what was fitted; stays the same when the policy or the limits change."""
        digest = hashlib.sha256()
        for name, tensor in sorted(guard_tensors(self).items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def name_of(self, label: int) -> str:
        """A class's name, or its number."""
        return self.class_names[label] if self.class_names else str(label)


def with_options(bundle: Bundle, **changes: Any) -> Bundle:
    """The same fit with other options."""
    unknown = sorted(set(changes) - set(OPTIONS))
    if unknown:
        raise OptionError(f"no option '{unknown[0]}'; known: {', '.join(OPTIONS)}")
    changed = replace(bundle, **changes)
    if "limits" in changes:  # the budgets in the report are those of the limits
        benign = bundle.calibration.benign if bundle.calibration else None
        changed = replace(changed, report=bundle.report | budget(changed.limits, bundle.report, benign))
    return changed


def guard_tensors(bundle: Bundle) -> dict[str, Tensor]:
    """Everything but the model's own weights, by name, on the CPU and each in memory of its own."""
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
    if bundle.calibration:
        parts |= {
            "calibration.labels": bundle.calibration.labels,
            "calibration.points": bundle.calibration.points,
        }
    return {name: t.detach().cpu().contiguous().clone() for name, t in parts.items()}
