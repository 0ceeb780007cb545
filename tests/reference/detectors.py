"""The scores of detectors as they are defined: one query after the other, one pair after the other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.linalg import sqrtm
from scipy.stats import shapiro


def prada(x: np.ndarray, labels: Iterable[int], least: int, every: int) -> list[float]:
    """1 - W after each query (n, P), -inf where PRADA does not judge."""
    members: dict[int, list[np.ndarray]] = {}
    gaps: dict[int, list[float]] = {}
    bars: dict[int, float] = {}
    distances: list[float] = []
    scores = []
    for query, label in zip(x, labels, strict=True):
        score = -np.inf
        if label not in members:
            members[label], gaps[label], bars[label] = [query], [0.0], 0.0
        else:
            nearest = min(float(np.linalg.norm(query - other)) for other in members[label])
            distances.append(nearest)
            if nearest > bars[label]:
                members[label].append(query)
                gaps[label].append(nearest)
                bars[label] = max(bars[label], float(np.mean(gaps[label]) - np.std(gaps[label])))
            if len(distances) >= least and len(distances) % every == 0:
                mean, spread = np.mean(distances), np.std(distances)
                score = 1 - shapiro([d for d in distances if abs(d - mean) <= 3 * spread]).statistic
        scores.append(float(score))
    return scores


def near_pairs(features: np.ndarray, radius: float) -> list[float]:
    """How many pairs are nearer than the radius after each query (n, D)."""
    pairs, scores = 0, []
    for row, feature in enumerate(features):
        pairs += sum(float(np.linalg.norm(feature - other)) < radius for other in features[:row])
        scores.append(float(pairs))
    return scores


def frechet(own: np.ndarray, other: np.ndarray) -> float:
    """The squared Frechet distance between the Gaussians of two sets of features (n, D) and (m, D)."""
    first, second = (np.cov(rows.T, bias=True) for rows in (own, other))
    shift = own.mean(0) - other.mean(0)
    return float(shift @ shift + np.trace(first + second - 2 * sqrtm(first @ second).real))


def discrepancy(features: np.ndarray, labels: np.ndarray, reference: np.ndarray, classes: np.ndarray) -> float:
    """D-ADD's score of one window: Frechet distances class by class, weighted by the class's share of the window."""
    return sum(
        (labels == label).mean() * frechet(features[labels == label], reference[classes == label])
        for label in np.unique(labels)
    )


def squared_mmd(own: np.ndarray, other: np.ndarray, width: float) -> float:
    """The unbiased estimate of the squared maximum mean discrepancy with a Gaussian kernel."""

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-np.square(a - b).sum() / (2 * width**2)))

    def among(rows: np.ndarray) -> float:
        return float(np.mean([kernel(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]))

    return among(own) + among(other) - 2 * float(np.mean([kernel(a, b) for a in own for b in other]))
