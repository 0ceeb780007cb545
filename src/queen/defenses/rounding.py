"""Rounding: probabilities with few decimals."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.errors import OptionError

MOST_DECIMALS = 15  # more than a float64 holds


def perturb(y: Tensor, *, decimals: int = 1) -> Tensor:
    """y (n, K) rounded half to even as NumPy does, not renormalised: rows may sum to anything, even to 0."""
    _check(decimals)
    scale = y.new_full((), 10.0**decimals)  # a tensor: on CUDA a plain number would divide by multiplying
    return (y * scale).round_().div_(scale)


def _check(decimals: object) -> None:
    if not isinstance(decimals, int) or isinstance(decimals, bool) or not 0 <= decimals <= MOST_DECIMALS:
        raise OptionError(f"decimals must be a whole number from 0 to {MOST_DECIMALS}, got {decimals!r}")


def build(victim: Victim, generator: torch.Generator, *, decimals: int = 1) -> Endpoint:
    """Round every answer."""
    _check(decimals)
    return MappedEndpoint(victim, lambda y, x: perturb(y, decimals=decimals))


DEFENSE = Defense(build, keeps_label="ties", on_simplex=False)
