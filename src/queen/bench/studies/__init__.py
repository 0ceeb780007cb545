"""The paper's other experiments, by name: each borrows the protectee of a benchmark spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queen.bench.studies import (
    features,
    forget_quality,
    quartiles,
    radius,
    runtime,
    shadow_models,
    threshold,
)
from queen.bench.studies.base import Study
from queen.defenses.base import nearest
from queen.errors import OptionError

STUDIES: Mapping[str, Study[Any]] = {
    "threshold": threshold.STUDY,
    "radius": radius.STUDY,
    "shadow_models": shadow_models.STUDY,
    "forget_quality": forget_quality.STUDY,
    "quartiles": quartiles.STUDY,
    "features": features.STUDY,
    "runtime": runtime.STUDY,
}


def find_study(name: str) -> Study[Any]:
    """A study by name."""
    if name not in STUDIES:
        raise OptionError(f"no study '{name}'{nearest(name, STUDIES)}")
    return STUDIES[name]


__all__ = ["STUDIES", "Study", "find_study"]
