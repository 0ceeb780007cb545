"""MAD as it is defined: an explicit gradient matrix G, every candidate built and compared on its own."""

from __future__ import annotations

from itertools import combinations

import numpy as np

LEAD = 1e-5


def direction(v: np.ndarray) -> np.ndarray:
    """A unit vector; none where v is rounding errors only."""
    size = np.linalg.norm(v)
    return v / size if size > 1e-7 else 0 * v


def objective(q: np.ndarray, y: np.ndarray, G: np.ndarray) -> float:
    """How far learning from q instead of y turns the gradient; row k of G (K, D) is the gradient for class k."""
    return float(np.square(direction(G.T @ q) - direction(G.T @ y)).sum())


def candidate(members: tuple[int, ...], top: int, classes: int) -> np.ndarray:
    q = np.zeros(classes)
    q[list(members)] = 1
    q[top] += LEAD
    return q / q.sum()


def best_of_all(y: np.ndarray, G: np.ndarray) -> np.ndarray:
    """The best candidate among all sets of classes with the top class in them."""
    classes, top = len(y), int(np.argmax(y))
    others = [k for k in range(classes) if k != top]
    sets = [(top, *rest) for size in range(classes) for rest in combinations(others, size)]
    assert len(sets) == 2 ** (classes - 1)
    return max((candidate(members, top, classes) for members in sets), key=lambda q: objective(q, y, G))


def best_grown(y: np.ndarray, G: np.ndarray) -> tuple[np.ndarray, int]:
    """The best candidate that greedy growth meets before 1024 evaluations are reached, and the largest set's size."""
    classes, top = len(y), int(np.argmax(y))
    shifted = y + 1e-8
    members, evaluations = (top,), 0
    best = candidate(members, top, classes)
    while evaluations < 1024 and len(members) < classes:
        tried = [(*members, k) for k in range(classes) if k not in members]
        evaluations += len(tried)
        members = max(tried, key=lambda some: objective(candidate(some, top, classes), shifted, G))
        grown = candidate(members, top, classes)
        best = max((best, grown), key=lambda q: objective(q, shifted, G))
    return best, len(members)


def mixed(y: np.ndarray, worst: np.ndarray, epsilon: float) -> np.ndarray:
    share = min(1.0, epsilon / (np.abs(y - worst).sum() + 1e-7))
    return (1 - share) * y + share * worst
