"""Compiling a network for a GPU where the time that takes comes back.

A compiled VGG16 step takes two thirds of the time of a plain one (results/training); compiling takes about 20 seconds
in the first process, and less in those after it, which find it on the disk. Whoever does not know how many trainings
follow does best to rent first and to buy once the rent has reached the price: to compile when the steps already taken
without it cost as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

COMPILED_FROM = 3000  # steps of one network and shape in a process

_steps_taken: Counter[tuple[str, tuple[int, ...], str]] = Counter()

Loss = Callable[..., Tensor]


def compile_if_worth_it(loss: Loss, model: nn.Module, shape: tuple[int, ...], steps: int, name: str = "") -> Loss:
    """The loss, compiled if it took `COMPILED_FROM` steps of such a network on batches of this shape, the `steps` ahead
    included; `name` tells apart the losses of one network."""
    kind = (repr(model), shape, name)
    _steps_taken[kind] += steps
    if _steps_taken[kind] < COMPILED_FROM:
        return loss
    return torch.compile(loss, dynamic=False)
