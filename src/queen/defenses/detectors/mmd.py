"""An MMD detector: the last queries of an account against reference traffic, by a kernel two-sample statistic.

The score of a window is the unbiased estimate of the squared maximum mean discrepancy between its features and those of
the reference, with a Gaussian kernel as wide as the median distance between reference images (Liu, Guo and Dong, arXiv
2606.05725, who test the traffic of language models so). The reference here are training images.
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


def gaussian_kernel(a: Tensor, b: Tensor, width: float) -> Tensor:
    """exp(-|a - b|^2 / (2 width^2)) of all pairs, (..., n, D) and (..., m, D) -> (..., n, m)."""
    return (torch.cdist(a, b).square() / (-2 * width**2)).exp()


def mean_of_pairs(kernel: Tensor) -> Tensor:
    """The mean (...) of a kernel (..., n, n) over pairs of different rows."""
    count = kernel.shape[-1]
    return (kernel.sum((-2, -1)) - kernel.diagonal(dim1=-2, dim2=-1).sum(-1)) / (count * (count - 1))


@dataclass(frozen=True)
class ReferenceTraffic:
    """Features (n, D) of reference traffic, the width of the kernel, and the kernel's mean over pairs of them."""

    features: Tensor
    width: float
    among: float

    @classmethod
    def of(cls, features: Tensor) -> ReferenceTraffic:
        """The reference with the median distance as the kernel's width."""
        width = float(torch.nn.functional.pdist(features.cpu()).median())
        return cls(features, width, float(mean_of_pairs(gaussian_kernel(features, features, width))))


class MmdWatch:
    """The last queries of one client."""

    def __init__(self, reference: ReferenceTraffic, window: int, every: int) -> None:
        self._reference = reference
        self._window = SlidingWindow(window, every)

    def follow(self, batch: QueryBatch) -> Scores:
        """The squared discrepancy of the window after every `every`-th query, once it is full."""
        other = self._reference
        across = gaussian_kernel(batch.features, other.features, other.width).mean(1)
        looks, (features, cross) = self._window.add(batch.features, across)
        own = mean_of_pairs(gaussian_kernel(features, features, other.width))
        scores: Scores = np.full(len(batch.labels), -np.inf)
        scores[looks.numpy()] = (own + other.among - 2 * cross.mean(1)).cpu().numpy()
        return scores


def build(
    victim: Victim,
    generator: torch.Generator,
    *,
    alpha: float = FalseAlarms.alpha,
    life: int | None = FalseAlarms.life,
    clients: int = FalseAlarms.clients,
    window: int = 50,
    every: int = 5,
    reference: int = 1000,
) -> Endpoint:
    """Compare the last `window` queries with `reference` training images, after every `every`-th query."""
    for name, value, least in (("window", window, 2), ("every", every, 1), ("reference", reference, 2)):
        check_count(name, value, least)

    def make_watch(reader: FeatureReader, own: torch.Generator) -> Callable[[], MmdWatch]:
        images, _ = read_reference(victim, reader, reference, own)
        return partial(MmdWatch, ReferenceTraffic.of(images.features), window, every)

    recipe = {"detector": "mmd", "window": window, "every": every, "reference": reference}
    wanted = FalseAlarms(alpha=alpha, life=life, clients=clients)
    return start_detector(victim, generator, make_watch, wanted, recipe)


DEFENSE = Defense(build, keeps_label="always", needs=frozenset({"x", "calibration"}), stateful=True)
