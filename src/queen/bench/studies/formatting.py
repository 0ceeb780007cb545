"""Numbers and names as the tables and sentences of studies show them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def percent(*values: float) -> str:
    """The mean of several runs in percent, plus-minus their standard deviation; a dash if there are none."""
    if not values:
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def percent_range(values: Iterable[float]) -> str:
    """The smallest and the largest share in percent; only one of them if both look alike."""
    listed = [100 * value for value in values]
    low, high = f"{min(listed):.1f}", f"{max(listed):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def pool_name(pool: str) -> str:
    """The name of a pool for people."""
    return pool.replace("_", " ")
