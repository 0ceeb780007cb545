"""Scores: how foreign a query looks, in several ways at once, since no single one works on every model.

A score is high for foreign queries. Only its rank among calibration scores matters for a bet, so each is on the scale
on which adding means the same everywhere: the energy as it is, the others as logarithms. That is what `margin` adds to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from queen.core.sensitivity import Floats
from queen.options import SCORES

# Not the nearest alone, which may be an odd one, though some foreign images stand out best by it; and none far away:
# of a hundred classes the reference holds twenty images each (results/sentinel/neighbours.json has the figures).
NEIGHBOURS = 2
RANK = 128  # of the reference: more axes separated no better on CIFAR-10 and CIFAR-100
SMALLEST = 1e-12  # before a logarithm: a point in its centre, a feature equal to one of the reference


@dataclass(frozen=True)
class Reference:
    """Training features that queries are compared with by the cosine.

    `axes` (D, r) are orthonormal directions that hold all but a trace of them, and `coordinates` (r, m) the normalised
    features along these: a query takes less than half of the time that 512 dimensions would.
    """

    axes: Tensor
    coordinates: Tensor

    def cosines(self, features: Tensor) -> Tensor:
        """(n, m) of features (n, D) and every feature of the reference."""
        # Not functional.normalize, which takes twice as long for a single query.
        length = torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_(min=SMALLEST)
        cosines: Tensor = (features / length) @ self.axes @ self.coordinates
        return cosines


def make_reference(features: Tensor) -> Reference:
    """A reference of training features (m, D)."""
    normalised = torch.nn.functional.normalize(features.double())
    axes = torch.linalg.svd(normalised, full_matrices=False).Vh[:RANK].T
    return Reference(axes.float().contiguous(), (normalised @ axes).T.float().contiguous())


def all_scores(features: Tensor, logits: Tensor, points: Tensor, reference: Reference) -> Tensor:
    """Every known score (n, 4) of a batch, in the order of `SCORES`."""
    z, y, p = (t.cpu().numpy() for t in (logits, logits.softmax(1), points))
    return torch.from_numpy(measure_scores(SCORES, features, z, y, p, reference)).to(features.device)


def measure_scores(
    names: Sequence[str], features: Tensor, logits: Floats, honest: Floats, points: Floats, reference: Reference
) -> Floats:
    """The named scores (n, S); `honest` is the softmax of the logits.

    energy: -logsumexp(logits). distance: log of the distance from the class's centre on the 2-D plane. confidence: log
    of one minus the largest probability. knn: log of one minus the cosine to the second nearest feature of `reference`.
    All but the last by numpy, which takes half as long as torch for a single query.
    """
    scores = np.empty((len(honest), len(names)))
    for column, name in enumerate(names):
        scores[:, column] = _before_log(name, features, honest, points, reference)
    np.log(np.maximum(scores, SMALLEST, out=scores), out=scores)
    if "energy" in names:
        scores[:, names.index("energy")] -= logits.max(1)
    return scores


def _before_log(name: str, features: Tensor, honest: Floats, points: Floats, reference: Reference) -> Floats:
    """What a score is the logarithm of; of the energy without the largest logit: -logsumexp(z) = log(max y) - max z."""
    result: Floats
    if name == "energy":
        result = honest.max(1)
    elif name == "distance":
        result = np.hypot(points[:, 0], points[:, 1])
    elif name == "confidence":
        result = 1 - honest.max(1)
    else:
        cosines = reference.cosines(features)
        result = 1 - cosines.topk(min(NEIGHBOURS, cosines.shape[1]), dim=1).values.amin(1).cpu().numpy()
    return result
