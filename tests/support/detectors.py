"""The detectors by name, and streams of made-up queries that are dealt to batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from queen.defenses import DEFENSES
from queen.defenses.detectors.base import QueryBatch, Watch

DETECTORS = [name for name, one in DEFENSES.items() if one.build.__module__.startswith("queen.defenses.detectors.")]

CUTS = st.lists(st.integers(1, 40), max_size=12)
"""Sizes of the first batches; the rest of a stream comes in one."""


def made_up(count: int, seed: int = 0, classes: int = 3, size: int = 5) -> QueryBatch:
    """Queries that lie around a centre per class; the images and the features are not the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    centres = 3 * torch.randn(classes, size, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    features = centres[labels] + torch.randn(count, size, generator=generator, dtype=torch.float64)
    x = torch.rand(count, 1, 2, 3, generator=generator, dtype=torch.float64)
    return QueryBatch(x, features, labels)


def follow(watch: Watch, stream: QueryBatch, cuts: Sequence[int] = ()) -> np.ndarray:
    """The scores of a stream that comes in batches of these sizes, and a last one with the rest."""
    rows = torch.arange(len(stream.labels))
    ends = [int(end) for end in np.cumsum(cuts) if end < len(rows)]
    return np.concatenate([watch.follow(stream.take(part)) for part in rows.tensor_split(ends)])
