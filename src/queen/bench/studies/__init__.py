"""The paper's other experiments, by name: each uses the protectee of a benchmark spec.

A study measures (one JSON file), draws (one picture) and describes (one section of docs/studies.md). The commands and
`tools/pages.py` import this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queen.bench.studies import costs, detectors, features, forget_quality, limits, quartiles, runtime, shadow_models
from queen.bench.studies.base import Study
from queen.defenses.base import nearest
from queen.errors import OptionError

STUDIES: Mapping[str, Study[Any]] = {
    "threshold": limits.THRESHOLD,
    "radius": limits.RADIUS,
    "shadow_models": shadow_models.STUDY,
    "forget_quality": forget_quality.STUDY,
    "quartiles": quartiles.STUDY,
    "features": features.STUDY,
    "runtime": runtime.STUDY,
    "detectors": detectors.STUDY,
    "costs": costs.STUDY,
}


def find_study(name: str) -> Study[Any]:
    """A study by its name; an unknown one is an error that suggests the nearest."""
    if name not in STUDIES:
        raise OptionError(f"no study '{name}'{nearest(name, STUDIES)}")
    return STUDIES[name]


__all__ = ["STUDIES", "Study", "find_study"]
