"""D-ADD's detector: the last queries of an account, class by class, against the Gaussians of the training images.

The features of each class are a Gaussian. The score of a window of queries is the squared Frechet distance between the
Gaussian of its queries with one label and that of the class, summed over classes by their share of the window (Mei et
al., AAAI 2025, arXiv 2503.12497). The published defense then poisons answers at random; here the accused are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, Victim
from queen.defenses.detectors.base import (
    FalseAlarms,
    FeatureReader,
    QueryBatch,
    Scores,
    check_count,
    start_detector,
)
from queen.defenses.detectors.windows import SlidingWindow, read_reference

FEW_CLASSES, MANY_CLASSES = 16, 256  # published windows, for 10 and for 100 classes


@dataclass(frozen=True)
class ClassGaussians:
    """Of every class: the mean (K, D) of its features, a root of their covariance (K, D, D), and its trace (K,)."""

    means: Tensor
    roots: Tensor
    traces: Tensor

    def rooted(self, features: Tensor, labels: Tensor) -> Tensor:
        """The features (n, D), each times the root of its class."""
        result = torch.empty_like(features)
        for label in labels.unique().tolist():  # type: ignore[no-untyped-call]
            result[labels == label] = features[labels == label] @ self.roots[label]
        return result


def fit_gaussians(features: Tensor, labels: Tensor, classes: int) -> ClassGaussians:
    """The Gaussians of features (n, D) by label; a class without any gets that of all features."""
    means, roots, traces = [], [], []
    for label in range(classes):
        own = features[labels == label]
        own = own if len(own) else features
        apart = own - own.mean(0)
        values, vectors = torch.linalg.eigh(apart.T @ apart / len(own))
        values = values.clamp(min=0)
        means.append(own.mean(0))
        roots.append(vectors * values.sqrt() @ vectors.T)
        traces.append(values.sum())
    return ClassGaussians(torch.stack(means), torch.stack(roots), torch.stack(traces))


def discrepancies(features: Tensor, rooted: Tensor, labels: Tensor, classes: ClassGaussians) -> Tensor:
    """The score (m,) of windows of features (m, w, D), the same times the roots of their classes, and labels (m, w).

    A sum over classes by their share is a mean over rows, each counting its own class. What remains of the Frechet
    distance is the trace of the root of the product of both covariances: the sum of the singular values of the window's
    deviations times the root of the class's covariance. Those of all classes at once are the roots of the eigenvalues
    of one matrix (w, w) with a block per class.
    """
    width = labels.shape[1]
    alike = (labels[:, :, None] == labels[:, None, :]).to(features.dtype)
    counts = alike.sum(2, keepdim=True)
    means = alike @ features / counts
    apart = rooted - alike @ rooted / counts
    blocks = alike * (apart @ apart.mT) * counts / width**2
    singular = torch.linalg.eigvalsh(blocks).clamp(min=0).sqrt().sum(1)
    shift = (means - classes.means[labels]).square().sum(2)
    spread = (features - means).square().sum(2) + classes.traces[labels]
    scores: Tensor = (shift + spread).mean(1) - 2 * singular
    return scores


class DiscrepancyWatch:
    """The last queries of one client."""

    def __init__(self, classes: ClassGaussians, window: int, every: int) -> None:
        self._classes = classes
        self._window = SlidingWindow(window, every)

    def follow(self, batch: QueryBatch) -> Scores:
        """The score of the window after every `every`-th query, once it is full."""
        rooted = self._classes.rooted(batch.features, batch.labels)
        looks, (features, roots, labels) = self._window.add(batch.features, rooted, batch.labels)
        scores: Scores = np.full(len(batch.labels), -np.inf)
        scores[looks.numpy()] = discrepancies(features, roots, labels, self._classes).cpu().numpy()
        return scores


def build(
    victim: Victim,
    generator: torch.Generator,
    *,
    alpha: float = FalseAlarms.alpha,
    life: int | None = FalseAlarms.life,
    clients: int = FalseAlarms.clients,
    window: int | None = None,
    every: int = 4,
    reference: int = 5000,
) -> Endpoint:
    """Judge the last `window` queries (published: 16, or 256 for 100 classes) after every `every`-th one."""
    for name, value in (("window", 1 if window is None else window), ("every", every), ("reference", reference)):
        check_count(name, value)

    def make_watch(reader: FeatureReader, own: torch.Generator) -> Callable[[], DiscrepancyWatch]:
        images, labels = read_reference(victim, reader, reference, own)
        classes = reader.read(victim.train[0][:1])[1].shape[1]
        width = window or (FEW_CLASSES if classes < 100 else MANY_CLASSES)
        return partial(DiscrepancyWatch, fit_gaussians(images.features, labels, classes), width, every)

    recipe = {"detector": "d_add", "window": window, "every": every, "reference": reference}
    wanted = FalseAlarms(alpha=alpha, life=life, clients=clients)
    return start_detector(victim, generator, make_watch, wanted, recipe)


DEFENSE = Defense(build, keeps_label="always", needs=frozenset({"x", "calibration"}), stateful=True)
