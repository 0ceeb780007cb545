"""Scores: how foreign a query looks, in several ways at once, since no single one works on every model.

A score is high for foreign queries. Only its rank among calibration scores matters for a bet, so each is on the scale
on which adding means the same everywhere: the energy as it is, the others as logarithms. That is what `margin` adds to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from queen.options import SCORES

NEIGHBOURS = 10
SMALLEST = 1e-12  # before a logarithm: a point in its centre, a feature equal to one of the reference


def all_scores(features: Tensor, logits: Tensor, points: Tensor, reference: Tensor) -> Tensor:
    """Every known score (n, 4) of a batch, in the order of `SCORES`."""
    honest = logits.softmax(1)
    return torch.stack([score(name, features, logits, honest, points, reference) for name in SCORES], 1)


def score(name: str, features: Tensor, logits: Tensor, honest: Tensor, points: Tensor, reference: Tensor) -> Tensor:
    """One score (n,); `honest` is the softmax of the logits, `reference` (m, D) holds normalised training features.

    energy: -logsumexp(logits). distance: log of the distance from the class's centre on the 2-D plane. confidence: log
    of one minus the largest probability. knn: log of one minus the cosine to the tenth nearest feature of `reference`.
    """
    if name == "energy":  # from the softmax we have: four times as fast for a small batch
        return honest.amax(1).log_().sub_(logits.amax(1))
    if name == "distance":
        distance: Tensor = torch.linalg.vector_norm(points.float(), dim=1)
        return distance.clamp_(min=SMALLEST).log_()
    if name == "confidence":
        return (1 - honest.amax(1)).clamp_(min=SMALLEST).log_()
    likeness = torch.nn.functional.normalize(features) @ reference.T
    nearest = likeness.topk(min(NEIGHBOURS, len(reference)), dim=1).values[:, -1]
    return (1 - nearest).clamp_(min=SMALLEST).log_()
