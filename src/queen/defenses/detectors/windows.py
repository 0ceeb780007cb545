"""The last queries of a client, and the images of the owner that detectors compare them with."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.defenses.base import Victim
from queen.defenses.detectors.base import FeatureReader, QueryBatch


class SlidingWindow:
    """The last `size` queries of a client, looked at after every `every`-th query once there are so many."""

    def __init__(self, size: int, every: int) -> None:
        self._size, self._every = size, every
        self._count = 0
        self._last: tuple[Tensor, ...] = ()

    def add(self, *columns: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Add what is known of new queries, each column (n, ...).

        Returns the rows (m,) of the new queries after which there is a look, and of each column the windows
        (m, size, ...) that end there.
        """
        new = len(columns[0])
        rows = tuple(map(torch.cat, zip(self._last, columns, strict=True))) if self._last else columns
        earlier = len(rows[0]) - new
        counts = torch.arange(self._count + 1, self._count + new + 1)
        looks = ((counts >= self._size) & (counts % self._every == 0)).nonzero()[:, 0]
        places = (earlier + looks[:, None] + torch.arange(1 - self._size, 1)).to(rows[0].device)
        windows = tuple(column[places] for column in rows)
        self._count += new
        self._last = tuple(column[max(0, len(column) - self._size + 1) :] for column in rows)
        return looks, windows


def read_reference(
    victim: Victim, reader: FeatureReader, count: int, generator: torch.Generator
) -> tuple[QueryBatch, Tensor]:
    """At most `count` random images that the victim was trained with, as detectors see them, and their labels."""
    x, y = victim.train
    rows = torch.randperm(len(x), generator=generator)[:count].to(x.device)
    return reader.read(x[rows])[0], y[rows]
