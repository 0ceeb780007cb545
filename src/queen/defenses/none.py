"""No defense, with which every other one is compared."""

from __future__ import annotations

import torch

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim


def build(victim: Victim, generator: torch.Generator) -> Endpoint:
    """The victim as it is."""
    return MappedEndpoint(victim, lambda y, x: y)


DEFENSE = Defense(build, keeps_label="always")
