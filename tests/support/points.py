"""Streams of points for the ledgers: hypothesis strategies that reach the corners of the rule, and how to cut them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from queen.options import Limits

CLASSES = 3
below = float(np.nextafter(1, 0))
RIM = [(0.28, 0.96), (0.96, -0.28), (-0.6, 0.8), (1.0, 0.0), (0.0, -1.0), (below, 0.0), (0.0, 0.0), (-0.0, -0.0),
       (0.28, float(np.nextafter(0.96, 0))), (2**-0.5, 2**-0.5), (5e-324, 0.0), (1e200, -1e200),
       # where hypot and x*x + y*y disagree, either way
       (-0.8089281451572671, 0.5879075233167401), (0.9946128276123087, 0.1036596505350456)]  # fmt: skip
small = st.integers(-5, 5)
spot_of = st.one_of(
    st.tuples(st.just("grid"), small, small),
    st.tuples(st.just("rim"), st.integers(0, len(RIM) - 1), st.just(0)),
    st.tuples(st.just("free"), st.floats(-1.1, 1.1), st.floats(-0.8, 0.8)),
    st.tuples(st.just("near"), st.integers(0, 30), st.integers(0, 9)),
)
rows_of = st.lists(st.tuples(st.integers(0, CLASSES - 1), spot_of), min_size=1, max_size=24)
cuts_of = st.lists(st.integers(1, 8), max_size=12)


def place(rows: list, limits: Limits) -> tuple[list[int], np.ndarray]:
    """Rows to labels and points: multiples of the radius, the rim, anywhere, and steps from earlier points."""
    labels, points = [], []
    for label, (kind, a, b) in rows:
        r = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
        x, y = (a * r, b * r) if kind == "grid" else RIM[a] if kind == "rim" else (a, b)
        if kind == "near":
            x, y = points[a % len(points)] if points else (0.25, 0.5)
            ulp = float(np.spacing(r))
            dx, dy = [(0, 0), (r, 0), (-r, 0), (0, r), (0, -r), (r - ulp, 0), (0, ulp - r), (r + ulp, 0),
                      (0.6 * r, 0.8 * r), (1e-9, 0)][b]  # fmt: skip
            x, y = x + dx, y + dy
        labels.append(label)
        points.append((float(x), float(y)))
    return labels, np.array(points)


def cut(count: int, sizes: list[int]) -> Iterator[slice]:
    """`count` rows in batches of these sizes; what is left over is one more batch."""
    start = 0
    for size in sizes:
        if start < count:
            yield slice(start, start + size)
            start += size
    if start < count:
        yield slice(start, count)
