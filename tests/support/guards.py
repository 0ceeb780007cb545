"""Small real things to test with: digits, two trained networks, fitted guards, a brute-force judge with a memory."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from queen import Guard, protect
from queen.core.mapping import MapRecipe
from queen.fit.shadows import ShadowRecipe
from queen.options import Limits
from queen.recipe import Recipe
from queen.zoo import build

torch.set_num_threads(1)  # for networks this small a second thread only waits

TRAIN = 1200  # the rest of the 1,797 digits is held out
QUICK = MapRecipe(epochs=10)
ALL_LETTERS = Limits(radius=0.2, threshold=0.02)  # held-out digits meet all four verdicts
SECRET = bytes(range(32))


def make_mlp(width: int = 32, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, classes))


@cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def train_set() -> tuple[Tensor, Tensor]:
    return digits()[0][:TRAIN], digits()[1][:TRAIN]


def held_out() -> tuple[Tensor, Tensor]:
    return digits()[0][TRAIN:], digits()[1][TRAIN:]


def images(x: Tensor) -> Tensor:
    return x.view(-1, 1, 8, 8)


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(200):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model


@cache
def _trained(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mlp":
            return train(make_mlp(), *train_set(), epochs=10)
        x, y = train_set()
        return train(build("small_cnn", classes=10, width=4), images(x), y, epochs=3)


def trained(kind: str) -> nn.Module:
    return deepcopy(_trained(kind))


SMALL_SHADOWS = ShadowRecipe(
    kind="network",
    count=3,
    draw=2,
    epochs=1,
    networks=[Recipe("queen.zoo:build", {"name": "small_cnn", "classes": 10, "width": 2})],
)


@cache
def _fitted(kind: str) -> Guard:
    x, y = train_set()
    if kind == "head":
        options = {"factory": "tests.support.guards:make_mlp", "class_names": [f"digit {k}" for k in range(10)]}
        return protect(
            trained("mlp"),
            (x, y),
            calibration=held_out(),
            policy="paper",
            mapping=QUICK,
            limits=ALL_LETTERS,
            secret=SECRET,
            **options,
        )
    return protect(
        trained("cnn"),
        (images(x), y),
        policy="paper",
        mapping=QUICK,
        limits=ALL_LETTERS,
        secret=SECRET,
        shadows=SMALL_SHADOWS,
    )


def fitted(kind: str = "head", **options: object) -> Guard:
    """A guard fitted once, with an empty ledger: "head" (an MLP on 64 numbers) or "network" (a CNN on 8x8 images)."""
    return _fitted(kind).fresh(**options)


def queries(kind: str = "head", count: int = 300) -> Tensor:
    x = held_out()[0][:count]
    return x if kind == "head" else images(x)


def on_simplex(probabilities: Tensor) -> bool:
    sums = probabilities.double().sum(1)
    return bool(probabilities.isfinite().all() and (probabilities >= 0).all() and (sums - 1).abs().max() < 1e-5)
