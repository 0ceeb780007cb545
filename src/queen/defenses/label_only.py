"""Label-only: the top class gets all of the probability."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim


def perturb(y: Tensor) -> Tensor:
    """One-hot vectors (n, K) of the top classes of y (n, K), the first one where several tie."""
    return F.one_hot(y.argmax(1), y.shape[1]).to(y.dtype)


def build(victim: Victim, generator: torch.Generator) -> Endpoint:
    """Answer the victim's label and nothing else."""
    return MappedEndpoint(victim, lambda y, x: perturb(y))


DEFENSE = Defense(build, keeps_label="always")
