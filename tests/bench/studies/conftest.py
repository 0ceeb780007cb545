"""A protectee small enough to study in seconds: 8x8 digits, a narrow network."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from queen.bench.protectee import make_protectee
from queen.bench.spec import read_spec
from queen.bench.studies.base import StudyContext
from queen.bench.studies.run import one_thread
from queen.cache import Cache
from queen.progress import Progress

QUICK = {"map_epochs": 20, "shadow_models": 2}
SPEC = {
    "name": "tiny",
    "protectee": {
        "name": "digits",
        "data": {"set": "digits", "split": "all"},
        "train": 900,
        "calibration": 200,
        "benign": 300,
        "test": 300,
        "pool": {"set": "digits", "split": "all", "count": 200},
        "network": {"name": "small_cnn", "width": 4},
        "schedule": {"epochs": 6, "batch": 32},
    },
    "thief": {"schedule": {"epochs": 20, "batch": 32}},
    "budget": 200,
    "sizes": {"ask_batch": 64},
    "utility": {"clients": 3, "queries": 20},
    "defenses": {
        "none": {},
        "rounding": {},
        "modelguard_w": {},
        "queen": QUICK,
        "queen-strict": QUICK,
        "harsh": {"defense": "queen-strict", "threshold": 1e-4, **QUICK},
        "quick-sentinel": {"defense": "queen-sentinel", **QUICK},
    },
    "matrix": [{"queries": "knockoff", "attacks": ["direct"]}],
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("studies")
    (made / "tiny.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False))
    return made


@pytest.fixture(scope="session")
def context(folder):
    cache = Cache(folder / "cache")
    spec = read_spec(folder / "tiny.yaml")
    with one_thread(), Progress(False) as show:
        yield StudyContext(spec, make_protectee(spec.protectee, spec.thief, cache, "cpu", None), cache, show)
