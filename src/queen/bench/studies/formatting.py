"""How studies say their numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def percent(*values: float) -> str:
    """The mean of runs in percent, plus-minus the spread of several."""
    if not values:
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def span(values: Iterable[float]) -> str:
    """The smallest and the largest of some shares, in percent."""
    listed = [100 * value for value in values]
    low, high = f"{min(listed):.1f}", f"{max(listed):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def pool_name(pool: str) -> str:
    """A pool for people."""
    return pool.replace("_", " ")
