"""No defense: what every other one is compared with."""

from __future__ import annotations

import torch

from queen.defenses.base import Defense, Endpoint, Mapped, Victim


def build(victim: Victim, generator: torch.Generator) -> Endpoint:
    """The victim as it is."""
    return Mapped(victim, lambda y, x: y)


DEFENSE = Defense(build, keeps_label="always")
