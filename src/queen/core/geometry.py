"""Centres, spreads and relative points: where a class lives on the plane."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.errors import EmptyClassError, LabelError, SpreadError, TooFewClassesError


@dataclass(frozen=True)
class Geometry:
    """Per class: `centres` (K, 2) and `spreads` (K,) in float64, `feature_centres` (K, D) in the model's precision."""

    centres: Tensor
    spreads: Tensor
    feature_centres: Tensor

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return len(self.spreads)

    def relative(self, points: Tensor, labels: Tensor) -> Tensor:
        """p = (z - c^k) / d^k for points (n, 2) and labels (n,), in float64."""
        centres, spreads = (of_class.index_select(0, labels) for of_class in (self.centres, self.spreads))
        return (points.double() - centres).div_(spreads.unsqueeze(1))

    def relative_radii(self, radius: float) -> tuple[float, ...]:
        """rho^k = r / d^k: a radius in the map's own units, as one relative radius per class (K,)."""
        return tuple(radius / spread for spread in self.spreads.tolist())


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels outside the model's classes, too few classes and classes without images."""
    if classes < 2:
        raise TooFewClassesError(f"expected a classifier of at least 2 classes, got {classes}")
    check_range(labels, classes)
    empty = (torch.bincount(labels, minlength=classes) == 0).nonzero().flatten().tolist()
    if empty:
        raise EmptyClassError(f"no training images of class {_list_classes(empty)}: give at least two of every class")


def check_range(labels: Tensor, classes: int) -> None:
    """Refuse labels outside the model's classes."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise LabelError(
            f"expected labels from 0 to {classes - 1}, as the model has {classes} outputs, got {low} to {high}"
        )


def class_means(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean of values (n, d) per class -> (K, d), in float64 (Definition 1)."""
    sums = torch.zeros(classes, values.shape[1], dtype=torch.float64, device=values.device)
    for start in range(0, len(labels), 8192):
        rows = slice(start, start + 8192)
        # Not index_add_, which adds in a random order on a GPU.
        sums += F.one_hot(labels[rows], classes).double().T @ values[rows].double()
    return sums / torch.bincount(labels, minlength=classes).double()[:, None]


def measure(features: Tensor, points: Tensor, labels: Tensor, classes: int) -> Geometry:
    """Centres c^k, spreads d^k and feature centres C^k of the training data (features (n, D), points (n, 2))."""
    check_labels(labels, classes)
    broken = labels[~points.isfinite().all(1)]
    if len(broken):
        raise SpreadError(f"the 2-D points of class {_list_classes(sorted(set(broken.tolist())))} are not finite")
    centres = class_means(points, labels, classes)
    distances = torch.linalg.vector_norm(points.double() - centres[labels], dim=1)
    spreads = class_means(distances[:, None], labels, classes)[:, 0]
    bad = (spreads <= 0).nonzero().flatten().tolist()
    if bad:
        raise SpreadError(
            f"the 2-D points of class {_list_classes(bad)} coincide, so it has no disc: "
            "give more distinct images, or train the map with another seed or learning rate"
        )
    return Geometry(centres, spreads, class_means(features, labels, classes).to(features.dtype))


def nearest_centre(points: Tensor, geometry: Geometry) -> Tensor:
    """The class (n,) whose centre is nearest to each of the points (n, 2)."""
    return torch.cdist(points.double(), geometry.centres).argmin(1)


def _list_classes(classes: list[int]) -> str:
    shown = ", ".join(map(str, classes[:5]))
    return shown if len(classes) <= 5 else f"{shown} and {len(classes) - 5} more"
