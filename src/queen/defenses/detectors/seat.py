"""SEAT: an account whose queries are near each other in the space of a similarity encoder is extracting.

Attacks that perturb images send many variants of one. The score is the number of pairs of queries that are near each
other (Zhang, Chen and Wagner, AISec at CCS 2021). Published encoders are trained for it, adversarially; this one is the
victim's own, and "near" is what a tiny share of pairs of its training images are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, Victim
from queen.defenses.checks import check_number
from queen.defenses.detectors.base import (
    FalseAlarms,
    FeatureReader,
    QueryBatch,
    Scores,
    check_count,
    start_detector,
)
from queen.defenses.detectors.windows import read_reference


class SeatWatch:
    """The features of all that one client has sent, and the number of near pairs among them."""

    def __init__(self, radius: float) -> None:
        self._radius = radius
        self._features: Tensor | None = None
        self._pairs = 0

    def follow(self, batch: QueryBatch) -> Scores:
        """The number of near pairs after each query."""
        own = batch.features
        near = (torch.cdist(own, own) < self._radius).tril(-1).sum(1)
        if self._features is not None:
            near += (torch.cdist(own, self._features) < self._radius).sum(1)
        self._features = own if self._features is None else torch.cat([self._features, own])
        pairs: Scores = self._pairs + np.cumsum(near.cpu().numpy().astype(np.float64))
        self._pairs = int(pairs[-1])
        return pairs


def near_radius(features: Tensor, share: float) -> float:
    """The distance below which a share of the pairs of these features (n, D) lie."""
    distances = torch.nn.functional.pdist(features.cpu())
    place = max(1, round(share * len(distances)))
    return float(distances.kthvalue(place).values)


def build(
    victim: Victim,
    generator: torch.Generator,
    *,
    alpha: float = FalseAlarms.alpha,
    life: int | None = FalseAlarms.life,
    clients: int = FalseAlarms.clients,
    share: float = 1e-4,
    reference: int = 1000,
) -> Endpoint:
    """Call two queries near if only a `share` of the pairs of `reference` training images are nearer."""
    check_number("share", share, 0, 1, above=True)
    check_count("reference", reference, 2)

    def make_watch(reader: FeatureReader, own: torch.Generator) -> Callable[[], SeatWatch]:
        images, _ = read_reference(victim, reader, reference, own)
        return partial(SeatWatch, near_radius(images.features, share))

    recipe = {"detector": "seat", "share": share, "reference": reference}
    wanted = FalseAlarms(alpha=alpha, life=life, clients=clients)
    return start_detector(victim, generator, make_watch, wanted, recipe)


DEFENSE = Defense(build, keeps_label="always", needs=frozenset({"x", "calibration"}), stateful=True)
