"""Feature perturbation, step by step in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MARGIN = 1e-4


@dataclass(frozen=True)
class Walk:
    """Where the walk ended."""

    label: int
    steps: int
    farthest: int
    distance: float
    answer: np.ndarray


def walk_feature(
    u: np.ndarray,
    centres: np.ndarray,
    head: Callable[[np.ndarray], np.ndarray],
    step: float,
    max_steps: int | None = None,
) -> Walk:
    """Step `u` by `step` towards the farthest other centre while its class is strictly on top, never past it."""
    label = int(np.argmax(head(u)))
    distances = [float(np.sqrt(((c - u) ** 2).sum())) if j != label else -1.0 for j, c in enumerate(centres)]
    farthest = int(np.argmax(distances))
    distance = distances[farthest]
    direction = (centres[farthest] - u) / distance if distance > 0 else np.zeros_like(u)
    steps = 0
    while max_steps is None or steps < max_steps:
        if (steps + 1) * step > distance or not leads(head(u + (steps + 1) * step * direction), label):
            break
        steps += 1
    return Walk(label, steps, farthest, distance, answer_at(head(u + steps * step * direction), label))


def leads(logits: np.ndarray, label: int) -> bool:
    """Whether `label` is above every other class."""
    return all(logits[label] > value for j, value in enumerate(logits) if j != label)


def softmax(logits: np.ndarray) -> np.ndarray:
    """exp(l) / sum(exp(l))."""
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def answer_at(logits: np.ndarray, label: int) -> np.ndarray:
    """The softmax, mixed with the one-hot vector of `label` until that class leads by MARGIN."""
    p = softmax(logits)
    lead = p[label] - max(value for j, value in enumerate(p) if j != label)
    share = max(0.0, (MARGIN - lead) / (1 - lead)) if lead < 1 else 0.0
    return (1 - share) * p + share * np.eye(len(p))[label]
