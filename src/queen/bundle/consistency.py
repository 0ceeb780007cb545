"""Whether the parts of a stored bundle fit each other."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.bundle.calibration import Calibration
from queen.core.shadows import HeadShadows
from queen.errors import BundleError
from queen.options import SCORES


def check_parts(bundle: Bundle, guard: dict[str, Tensor]) -> None:
    """Every part must be finite and fit the others; a well-formed file can still hold nonsense."""
    (_, dims), (_, classes) = bundle.probe.features.shape, bundle.probe.logits.shape
    expected: dict[str, tuple[int, ...]] = {
        "geometry.centres": (classes, 2),
        "geometry.spreads": (classes,),
        "geometry.feature_centres": (classes, dims),
        "map.layers.0.weight": (len(guard["map.layers.0.weight"]), dims),
        "reference.axes": (dims, len(bundle.reference.coordinates)),
    }
    if isinstance(bundle.shadows, HeadShadows):
        count = len(bundle.shadows)
        expected |= {"shadows.weight": (count, classes, dims), "shadows.bias": (count, classes)}
    if bundle.calibration:
        count = len(bundle.calibration.labels)
        expected |= {f"calibration.{name}": (count,) for name in ("labels", "condition")}
        expected |= {"calibration.points": (count, 2), "calibration.scores": (count, len(SCORES))}
        expected["calibration.spreads"] = (classes, len(SCORES))
        expected["calibration.answers"] = (len(bundle.calibration.answers), classes)
        if foreign := bundle.calibration.foreign:
            expected["calibration.foreign.scores"] = (len(foreign.labels), len(SCORES))
            expected |= {} if foreign.pictures is None else {"calibration.foreign.pictures": (len(foreign.labels),)}
    for name, shape in expected.items():
        if tuple(guard[name].shape) != shape:
            raise BundleError(f"the bundle's {name} has shape {tuple(guard[name].shape)}, expected {shape}")
    for name, tensor in guard.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise BundleError(f"the bundle's {name} is not finite")
    if not (bundle.geometry.spreads > 0).all():
        raise BundleError("the bundle's spreads must be positive")
    if bundle.calibration:
        _check_calibration(bundle.calibration, guard, classes)


def _check_calibration(calibration: Calibration, guard: dict[str, Tensor], classes: int) -> None:
    """Labels must be classes, conditions must have a name, answers must be probabilities."""
    ranges = {"labels": classes, "condition": len(calibration.conditions)}
    if calibration.foreign:
        ranges["foreign.labels"] = classes
        ranges |= {} if calibration.foreign.pictures is None else {"foreign.pictures": len(calibration.foreign.labels)}
    for name, count in ranges.items():
        numbers = guard[f"calibration.{name}"]
        if numbers.is_floating_point() or numbers.min() < 0 or numbers.max() >= count:
            raise BundleError(f"the bundle's calibration.{name} must be whole numbers from 0 to {count - 1}")
    answers = guard["calibration.answers"]
    if answers.dtype != torch.float32 or answers.min() < 0 or not torch.allclose(answers.sum(1), torch.ones(())):
        raise BundleError("the bundle's calibration.answers must be probabilities in float32")
