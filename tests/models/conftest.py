from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from queen.core.mapping import MapRecipe
from queen.sentinel import power
from tests.support.guards import held_out, train_set


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch):
    """Thieves are followed for 60 queries instead of 5,000; tests/sentinel/test_power.py follows them further."""
    monkeypatch.setattr(power, "LONGEST", 60)


@pytest.fixture
def quick() -> dict:
    """Options of a quick fit."""
    return {"mapping": MapRecipe(epochs=10), "weak": True, "progress": False}


@pytest.fixture
def known() -> tuple[np.ndarray, np.ndarray]:
    """Digits that train, as arrays."""
    return tuple(t.numpy() for t in train_set())


@pytest.fixture
def unseen() -> np.ndarray:
    """Digits that do not."""
    return held_out()[0].numpy()


@cache
def cancer() -> tuple[np.ndarray, np.ndarray]:
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.data))
    return data.data[order], data.target[order]
