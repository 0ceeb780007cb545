"""Gradient reverse as the paper states it: an optimisation problem, handed to SLSQP."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

MARGIN = 1e-4


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """How aligned two vectors are."""
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def reverse_by_slsqp(honest: np.ndarray, pirate: np.ndarray, *, keep_label: bool = False) -> np.ndarray:
    """The point of the simplex most aligned with 2 * pirate - honest; best of several starts."""
    q, classes = 2 * pirate - honest, len(honest)
    label = int(np.argmax(honest))

    def loss(y: np.ndarray) -> float:
        return -cosine(q, y)

    def slope(y: np.ndarray) -> np.ndarray:
        size = np.sqrt(y @ y)
        return -(q / size - (q @ y) * y / size**3) / np.sqrt(q @ q)

    constraints = [{"type": "eq", "fun": lambda y: y.sum() - 1, "jac": np.ones_like}]
    if keep_label:
        others = np.delete(np.eye(classes), label, axis=0)
        rows = np.eye(classes)[label] - others
        constraints.append({"type": "ineq", "fun": lambda y: rows @ y - MARGIN, "jac": lambda y: rows})
    top = np.eye(classes)[label]
    uniform = np.full(classes, 1 / classes)
    positive = np.maximum(q, 0) / np.maximum(q, 0).sum()
    best, best_loss = None, np.inf
    for start in (0.99 * uniform + 0.01 * top, 0.5 * uniform + 0.5 * top, 0.5 * positive + 0.5 * top):
        found = minimize(
            loss,
            start,
            jac=slope,
            method="SLSQP",
            bounds=[(0, 1)] * classes,
            constraints=constraints,
            options={"ftol": 1e-16, "maxiter": 300},
        )
        y = np.clip(found.x, 0, None)
        y = y / y.sum()
        feasible = not keep_label or (rows @ y - MARGIN).min() >= -1e-9
        if feasible and loss(y) < best_loss:
            best, best_loss = y, loss(y)
    assert best is not None
    return best
