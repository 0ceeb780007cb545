"""A batch of queries between the model and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.core import inputs
from queen.sentinel.evidence import Bets
from queen.types import Inputs


@dataclass(frozen=True)
class MeasuredBatch:
    """A batch that went through the model and the map, as the ledger and the policy need it."""

    x: Inputs  # n rows, checked and on the model's device
    features: Tensor  # (n, D)
    logits: Tensor  # (n, K)
    honest: Tensor  # (n, K), the model's own probabilities
    labels: NDArray[np.int64]  # (n,), as the model predicts them
    points: NDArray[np.floating[Any]]  # (n, 2), relative to the disc of their class
    bets: Bets | None  # what the sentinel bets on every row, if it watches

    def take(self, rows: NDArray[np.intp]) -> MeasuredBatch:
        """The batch of these rows only."""
        picked = torch.from_numpy(rows).to(self.honest.device)
        return MeasuredBatch(
            inputs.take(self.x, picked),
            self.features[picked],
            self.logits[picked],
            self.honest[picked],
            self.labels[rows],
            self.points[rows],
            self.bets and self.bets.take(rows.tolist()),
        )
