"""Benchmarks small enough to run within seconds, and results that nobody had to run."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from queen.bench.protectee import Protectee, make_protectee
from queen.bench.spec import Spec, make_spec
from queen.cache import Cache

torch.set_num_threads(1)  # for networks this small a second thread only waits

CONTENT: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "protectee": {
        "name": "digits8",
        "data": {"set": "digits", "split": "all"},
        "train": 900,
        "calibration": 400,
        "benign": 100,
        "test": 200,
        "pool": {"set": "digits", "split": "all", "count": 600},
        "network": {"grid": 2},
        "schedule": {"epochs": 5, "lr": 0.1, "batch": 32},
    },
    "thief": {"schedule": {"epochs": 10, "lr": 0.1, "batch": 16}},
    "budget": 300,
    "defenses": {"none": {}, "label_only": {}},
    "matrix": [{"queries": ["knockoff"], "attacks": ["direct", "label_only"]}],
    "utility": {"clients": 3, "queries": 20},
    "sizes": {"mirror": False, "ask_batch": 64},
}


def content(**changes: Any) -> dict[str, Any]:
    """The small spec as YAML would hold it; `protectee__train=5` changes what lies deeper, None takes a key away."""
    made = deepcopy(CONTENT)
    for path, value in changes.items():
        *folders, key = path.split("__")
        inner = made
        for folder in folders:
            inner = inner.setdefault(folder, {})
        if value is None:
            inner.pop(key, None)
        else:
            inner[key] = value
    return made


def tiny_spec(**changes: Any) -> Spec:
    return make_spec(content(**changes))


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="queen-tests-")  # goes when the session ends


@cache
def tiny_protectee() -> Protectee:
    """The victim and everything around it; the cache it has is the whole session's."""
    spec = tiny_spec()
    return make_protectee(spec.protectee, spec.thief, Cache(Path(_folder().name)), "cpu", None)


def result(
    column: str = "queen",
    attack: str = "direct",
    *,
    query: str = "knockoff",
    seed: int = 0,
    accuracy: float | None = 0.5,
    benign: float = 0.9,
    flags: tuple[str, ...] = (),
    knows: tuple[str, ...] = (),
    protectee: str = "digits8",
    **more: Any,
) -> dict[str, Any]:
    """A result as a table needs it."""
    trained = {} if accuracy is None else {"agreement": accuracy / 2, "best_agreement": accuracy / 2 + 0.1}
    best = {} if accuracy is None else {"best_accuracy": accuracy + 0.1}
    return {
        "version": 1,
        "protectee": {
            "name": protectee,
            "accuracy": 0.95,
            "chance": 0.13,
            "images": {"test": 200},
            "sources": ["scikit-learn digits"],
        },
        "column": column,
        "defense": {"name": more.pop("defense", column)},
        "query": query,
        "attack": attack,
        "seed": seed,
        "knows": list(knows),
        "queries": {"budget": 300, "sent": 300, "answered": 300},
        "answers": {"label_kept": 0.5},
        "utility": {
            "one_client": {"accuracy": benign - 0.05},
            "many_clients": {"accuracy": benign},
        },
        "thief": {"accuracy": accuracy, **best, **trained},
        "flags": list(flags),
        **more,
    }
