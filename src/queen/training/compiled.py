"""Compiling a network for a GPU where the time that takes comes back.

A compiled VGG16 step takes two thirds of the time of a plain one (results/training); compiling takes about 20 seconds
in the first process, and less in those after it, which find it on the disk. Whoever does not know how many trainings
follow does best to rent first and to buy once the rent has reached the price: to compile when the steps already taken
without it cost as much. What counts is their rows, not their number: a step on twenty images is over in no time anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

COMPILED_FROM = 1_500_000  # rows that one network was trained on in a process, in batches of one shape

_rows_taken: Counter[tuple[str, tuple[int, ...], str]] = Counter()

Loss = Callable[..., Tensor]


def compile_if_worth_it(loss: Loss, model: nn.Module, shape: tuple[int, ...], steps: int, name: str = "") -> Loss:
    """The loss, compiled once such a network took `COMPILED_FROM` rows in batches of this shape (rows, ...), with those
    of the `steps` ahead; `name` tells apart the losses of one network."""
    kind = (repr(model), shape, name)
    _rows_taken[kind] += steps * shape[0]
    if _rows_taken[kind] < COMPILED_FROM:
        return loss
    return torch.compile(loss, dynamic=False)
