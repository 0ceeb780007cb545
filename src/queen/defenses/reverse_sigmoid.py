"""Reverse Sigmoid: take from every probability a sigmoid of its own logit."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.defenses.checks import check_number


def perturb(y: Tensor, *, beta: float = 0.2, gamma: float = 0.2) -> Tensor:
    """y - beta (sigmoid(gamma logit(y)) - 1/2), divided by its sum, (n, K) -> (n, K); exact 0 and 1 are fine.

    Below gamma = 1 tiny probabilities are lifted more than small ones, so a top class may fall behind. For gamma <= 1
    it stays on top if y_t >= beta sigmoid(gamma logit(y_t)), hence for every row where that holds at y_t = 1/K: up to
    13 classes with the defaults, and for the published beta of 100 classes (0.02) or 256 (0.008).
    """
    _check(beta, gamma)
    clean = y.double().clamp(0, 1)  # a sum of 1 in float32 may hide a 1.0000001, whose logit is not a number
    against = torch.exp(gamma * (torch.log1p(-clean) - clean.log()))  # exp(-gamma logit(y)), infinite or 0 at the ends
    lowered = clean - beta * (1 / (1 + against) - 0.5)  # torch.sigmoid rounds differently at the end of a batch
    return (lowered / lowered.sum(1, keepdim=True)).to(y.dtype)


def _check(beta: float, gamma: float) -> None:
    check_number("beta", beta, 0, 1)  # above 1 an answer may be negative
    check_number("gamma", gamma, 0, above=True)


def build(victim: Victim, generator: torch.Generator, *, beta: float = 0.2, gamma: float = 0.2) -> Endpoint:
    """Apply the map to every answer."""
    _check(beta, gamma)
    return MappedEndpoint(victim, lambda y, x: perturb(y, beta=beta, gamma=gamma))


DEFENSE = Defense(build, keeps_label="no")  # for some options and numbers of classes it does: see `perturb`
