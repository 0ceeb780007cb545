"""The price that a bundle holds, and what it says at that bundle's budget."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from queen.allowance import DAY
from queen.bundle.bundle import Bundle
from queen.price.curve import Curve, read_curve
from queen.price.words import price_lines

SPANS = {"day": 1, "month": 30, "year": 365}  # in days


def stored_curve(bundle: Bundle) -> Curve | None:
    """The price that the bundle's report holds, if one was measured."""
    stored: dict[str, Any] | None = bundle.report.get("price")
    return None if stored is None else read_curve(stored)


def bundle_price_lines(bundle: Bundle) -> Iterator[str]:
    """What the bundle's price says at its budget, sentence by sentence, the budget first; nothing without a price."""
    curve = stored_curve(bundle)
    if curve is not None:
        answers = honest_answers(bundle)
        yield from price_lines(curve, answers, promised_copy(bundle), within=answers_within(bundle))


def promised_copy(bundle: Bundle) -> float | None:
    """The `max_copy` that the limits were chosen for; None without one, or under options that do not bound copies."""
    return bundle.report.get("max_copy") if _is_bounded(bundle) else None


def honest_answers(bundle: Bundle) -> int | None:
    """The most distinct honest answers that one client ever gets; None where nothing bounds them."""
    return int(bundle.report["honest_answers"]) if _is_bounded(bundle) and not _renewing(bundle) else None


def answers_within(bundle: Bundle) -> dict[str, int]:
    """The most that one client gets in a day, a month and a year; empty where nothing renews, or nothing is bounded.

    Whoever begins in the middle of a window gets those of one more.
    """
    if not _is_bounded(bundle) or not _renewing(bundle):
        return {}
    records, limits = sum(bundle.report["records_per_class"]), bundle.limits
    parts = (records, limits.class_allowance.period), (limits.extra_allowance.amount, limits.extra_allowance.period)
    return {
        name: int(sum(amount * (ceil(days * DAY / period) if period else 1) for amount, period in parts))
        for name, days in SPANS.items()
    }


def _is_bounded(bundle: Bundle) -> bool:
    """Whether what one client learns ends with its budget."""
    return bundle.policy == "sentinel" and not bundle.observe and bundle.sentinel.tells_nothing


def _renewing(bundle: Bundle) -> bool:
    limits = bundle.limits
    return limits.class_allowance.period is not None or limits.extra_allowance.period is not None
