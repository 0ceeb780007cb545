"""What a server counted between two looks at its /metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
BOUND = re.compile(r'le="([^"]+)"')
VERDICT = re.compile(r'verdict="(\w+)"')
Counters = Mapping[tuple[str, str], float]


def read(text: str) -> Counters:
    """Every counter by name and labels."""
    return {(name, labels): float(value) for name, labels, value in LINE.findall(text)}


def changes(before: str, after: str) -> Counters:
    """How much every counter grew."""
    old = read(before)
    return {key: value - old.get(key, 0.0) for key, value in read(after).items()}


def total(counters: Counters, name: str) -> float:
    """A counter summed over its labels."""
    return sum(value for (counter, _), value in counters.items() if counter == name)


def mean(counters: Counters, histogram: str) -> float:
    """Mean of what a histogram saw; NaN if nothing."""
    count = total(counters, f"{histogram}_count")
    return total(counters, f"{histogram}_sum") / count if count else math.nan


def quantile(counters: Counters, histogram: str, share: float) -> float:
    """A quantile of what a histogram saw, as if values were spread evenly in its buckets; NaN if it saw nothing."""
    buckets = sorted(
        (float(BOUND.findall(labels)[0]), value)
        for (name, labels), value in counters.items()
        if name == f"{histogram}_bucket"
    )
    if not buckets or not buckets[-1][1]:
        return math.nan
    wanted = share * buckets[-1][1]
    low = below = 0.0
    for high, count in buckets:
        if count >= wanted:
            return low if math.isinf(high) else low + (high - low) * (wanted - below) / (count - below)
        low, below = high, count
    return low


def figures(counters: Counters) -> dict[str, Any]:
    """What the benchmark keeps of them, times in milliseconds."""
    rows = total(counters, "queen_rows_total")
    verdicts = {
        VERDICT.findall(labels)[0]: value / rows
        for (name, labels), value in counters.items()
        if name == "queen_verdicts_total" and rows
    }
    return {
        "batch_rows": mean(counters, "queen_batch_rows"),
        "commit_ms": {f"p{p}": 1000 * quantile(counters, "queen_ledger_seconds", p / 100) for p in (50, 95)},
        "server_ms": 1000 * mean(counters, "queen_request_seconds"),
        "model_ms": 1000 * mean(counters, "queen_model_seconds"),
        "ledger_ms": 1000 * mean(counters, "queen_ledger_seconds"),
        "verdicts": verdicts,
        "alarmed": total(counters, "queen_alarmed_rows_total") / rows if rows else 0.0,
    }
