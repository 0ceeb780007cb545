"""EMDP, the "exponential mechanism": nearly uniform answers, but without noise, so that anybody can undo them."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.defenses.checks import check_number


def perturb(y: Tensor, *, epsilon: float = 1.0) -> Tensor:
    """y'_k = exp(epsilon y_k / 2) / sum_j exp(epsilon y_j / 2), (n, K) -> (n, K)."""
    check_number("epsilon", epsilon, 0, above=True)
    # In float64, so that rounding the answers may tie two classes but never swaps them.
    return (y.double() * (epsilon / 2)).softmax(1).to(y.dtype)


def invert(answers: Tensor, *, epsilon: float = 1.0) -> Tensor:
    """The probabilities (n, K) behind `answers` (n, K): y_k = (2 / epsilon) log y'_k + const, const fixed by sum 1.

    Rounding errors of the answers are multiplied by up to 2 K / epsilon; numbers that fall below 0 are cut off.
    """
    check_number("epsilon", epsilon, 0, above=True)
    logs = answers.double().clamp(min=torch.finfo(torch.float64).tiny).log()
    y = (logs - logs.mean(1, keepdim=True)) * (2 / epsilon) + 1 / answers.shape[1]
    y = y.clamp_(min=0)
    return y.div_(y.sum(1, keepdim=True)).to(answers.dtype)


def build(victim: Victim, generator: torch.Generator, *, epsilon: float = 1.0) -> Endpoint:
    """Flatten every answer."""
    check_number("epsilon", epsilon, 0, above=True)
    return MappedEndpoint(victim, lambda y, x: perturb(y, epsilon=epsilon))


DEFENSE = Defense(build, keeps_label="ties")
