"""What the sentinel loses where a model does not tell its features: one network seen in three ways, and other models.

    PYTHONPATH=src:. python3 -m benchmarks.models.lost [--out results/models/lost.json]

Breast cancer and digits of scikit-learn: half of the rows train the model, a quarter calibrates, a quarter is what
benign clients send. Thieves send noise (every column uniform in its range), or mixed rows: every column comes from
another row, so each looks as usual and only their combination does not. Takes about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import queen
from queen.bench.render.models import lost_markdown
from queen.models import as_module
from queen.training import Schedule, train
from queen.zoo import MLP

DATA = {"breast cancer": load_breast_cancer, "digits": load_digits}
SEEDS = (0, 1)
CLIENTS = 10  # benign ones, of every seed
COVERS = ("0:1", "1:1")
NETWORK = "network (MLP)"
Rows = NDArray[np.float32]
Models = dict[tuple[str, str], Any]


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/models/lost.json"))
    options = parser.parse_args()
    start = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = pool.map(measure, *zip(*((name, seed) for name in DATA for seed in SEEDS), strict=True))
        cells = [cell for part in parts for cell in part]
    result = {"seeds": list(SEEDS), "clients": CLIENTS, "seconds": round(time.perf_counter() - start), "cells": cells}
    print(lost_markdown(result))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def measure(name: str, seed: int) -> list[dict[str, Any]]:
    """One cell for every model and way to see it."""
    torch.set_num_threads(1)
    data, rng = DATA[name](), np.random.default_rng(seed)
    order = rng.permutation(len(data.data))
    x, y = data.data[order], data.target[order]
    half, three = len(x) // 2, 3 * len(x) // 4
    x = ((x - x[:half].mean(0)) / (x[:half].std(0) + 1e-6)).astype(np.float32)
    foreign = {"noise": noise(x[:half], rng), "mixed rows": mixed(x[:half], rng)}
    parts = (x[:half], y[:half]), x[half:three], (x[three:], y[three:])
    cells = []
    for (model, sees), module in models(*parts[0], seed).items():
        figures = try_guard(module, *parts, foreign, rng, seed)
        cells.append({"data": name, "seed": seed, "model": model, "sees": sees, **figures})
    return cells


def models(x: Rows, y: NDArray[np.int64], seed: int) -> Models:
    """The models, by what they are and what the guard sees of them."""
    generator = torch.Generator().manual_seed(seed)
    classes = int(y.max()) + 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = MLP(x.shape[1], classes, (64, 64))
    train(network, torch.from_numpy(x), torch.from_numpy(y), Schedule(epochs=60, augment=False), generator)
    made: Models = {(NETWORK, "features and logits"): network}
    for gives in ("logits", "probabilities"):
        for columns in (x.shape[1], 0):
            module = as_module(_Answers(network, gives), gives=gives, classes=classes, columns=columns)
            made[NETWORK, _seen(module)] = module
    others: dict[str, ClassifierMixin] = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
        "random forest": RandomForestClassifier(100, random_state=seed),
        "xgboost": xgboost.XGBClassifier(n_estimators=50, n_jobs=1),
    }
    for name, estimator in others.items():
        estimator.fit(x, y)
        for module in (as_module(estimator), as_module(estimator, columns=0)):
            made[name, _seen(module)] = module
    return made


def _seen(module: Any) -> str:
    return f"{module.gives} and columns" if module.columns else f"{module.gives} alone"


class _Answers(torch.nn.Module):
    """A network that answers with logits or with probabilities."""

    def __init__(self, network: torch.nn.Module, gives: str) -> None:
        super().__init__()
        self.network, self.gives = network, gives

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.network(x)
        return logits.softmax(1) if self.gives == "probabilities" else logits


def try_guard(
    module: Any,
    known: tuple[Rows, NDArray[np.int64]],
    calibration: Rows,
    unseen: tuple[Rows, NDArray[np.int64]],
    foreign: dict[str, Rows],
    rng: np.random.Generator,
    seed: int,
) -> dict[str, Any]:
    """Whom the sentinel accuses, and how soon."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", queen.errors.ProtectionWarning)
        guard = queen.protect(module, known, calibration=calibration, policy="paper", seed=seed, progress=False)
    accused = {}
    for name, x in foreign.items():
        watching = queen.calibrate(guard, calibration, foreign=x, seed=seed, progress=False)
        found = watching.bundle.calibration.alarm_after(watching.bundle.sentinel, COVERS)
        accused[name] = {cover: {"median": one["median"], "caught": one["caught"]} for cover, one in found.items()}
    benign = guard.fresh(policy="sentinel", on_alarm="observe")
    sent = [unseen[0][rng.permutation(len(unseen[0]))] for _ in range(CLIENTS)]
    alarmed = [bool(benign.answer(x, client=f"client {i}").alarmed.any()) for i, x in enumerate(sent)]
    answers = guard.fresh(observe=True).answer(unseen[0], client="right").probabilities
    return {
        "scores": list(guard.bundle.sentinel.scores),
        "accuracy": float((answers.argmax(1) == unseen[1]).mean()),
        "benign accused": sum(alarmed),
        "benign queries": len(unseen[0]),
        "thieves": accused,
    }


def noise(x: Rows, rng: np.random.Generator) -> Rows:
    """A thousand rows whose columns are uniform in their range."""
    return rng.uniform(x.min(0), x.max(0), (1000, x.shape[1])).astype(np.float32)


def mixed(x: Rows, rng: np.random.Generator) -> Rows:
    """A thousand rows, each column of which comes from another row."""
    return np.stack([rng.choice(column, 1000) for column in x.T], 1)


if __name__ == "__main__":
    main()
