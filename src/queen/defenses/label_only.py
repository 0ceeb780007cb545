"""Label-only: all the mass on the top class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.defenses.base import Defense, Endpoint, Mapped, Victim


def perturb(y: Tensor) -> Tensor:
    """One-hot vectors (n, K) of the top classes of y (n, K), the first one where several tie."""
    return F.one_hot(y.argmax(1), y.shape[1]).to(y.dtype)


def build(victim: Victim, generator: torch.Generator) -> Endpoint:
    """Tell the victim's label and nothing else."""
    return Mapped(victim, lambda y, x: perturb(y))


DEFENSE = Defense(build, keeps_label="always")
