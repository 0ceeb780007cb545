"""The whole demo on small images, with short training, in this process: half a minute for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from queen.demo import Demo, measure, run, run_demo

torch.set_num_threads(1)  # the last digits of a training run depend on it

QUICK = {"map_epochs": 5}
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "tiny demo",
    "protectee": {
        "name": "foreign",
        "data": {"set": "digits", "split": "all"},
        "train": 800,
        "calibration": 500,
        "benign": 200,
        "test": 200,
        "pool": {"set": "photo_patches", "size": 8, "channels": 1, "count": 150},
        "network": {"grid": 2},
        "schedule": {"epochs": 8, "lr": 0.1, "batch": 32},
    },
    "thief": {"schedule": {"epochs": 10, "lr": 0.1, "batch": 32}},
    "budget": 150,
    "utility": {"clients": 1, "queries": 20},
    "defenses": {
        "undefended": {"defense": "none"},
        "paper": {"defense": "queen", "radius": 0.4, **QUICK},
        "strict": {"defense": "queen-strict", "radius": 0.4, **QUICK},
        "sentinel": {"defense": "queen-sentinel", "radius": 0.066, **QUICK},
    },
    "matrix": [
        {"queries": "knockoff", "attacks": ["direct", "label_only"]},
    ],
}
ADAPTIVE = {
    "name": "tiny adaptive",
    "budget": 100,
    "sizes": {"warm_up": 50},
    "matrix": [
        {"queries": "knockoff", "defenses": ["undefended", "sentinel"], "attacks": ["direct", "warm_up"]},
        {"queries": "knockoff", "defenses": ["sentinel", "decoys"], "attacks": "drop_after_alarm"},
    ],
}


@contextmanager
def tiny(folder: Path) -> Iterator[None]:
    """The demo with the specs above and few simulated clients."""
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        for name, content in (("DEMO", SPEC), ("ADAPTIVE", ADAPTIVE)):
            path = folder / f"{name.lower()}.yaml"
            path.write_text(yaml.safe_dump(content))
            patch.setattr(run, name, path)
        patch.setattr(run, "JOBS", 1)
        for name, value in {"ORDERS": 20, "ATTACK_ORDERS": 20, "RETRIES": 100, "ACCOUNTS": (1, 50)}.items():
            patch.setattr(measure, name, value)
        yield


@pytest.fixture(scope="session")
def again(tmp_path_factory) -> Callable[[], Demo]:
    """Run the demo, always into the same folder."""
    folder = tmp_path_factory.mktemp("demo")

    def run() -> Demo:
        with tiny(folder):
            return run_demo(folder / "out", adaptive=True, progress=False)

    return run


@pytest.fixture(scope="session")
def demo(again) -> Demo:
    return again()
