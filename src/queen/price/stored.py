"""The price that a bundle holds, and what it says at that bundle's budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queen.bundle.bundle import Bundle
from queen.price.curve import Curve, read_curve
from queen.price.words import price_lines


def stored_curve(bundle: Bundle) -> Curve | None:
    """The price that the bundle's report holds, if one was measured."""
    stored: dict[str, Any] | None = bundle.report.get("price")
    return None if stored is None else read_curve(stored)


def bundle_price_lines(bundle: Bundle) -> Iterator[str]:
    """What the bundle's price says at its budget, sentence by sentence, the budget first; nothing without a price."""
    curve = stored_curve(bundle)
    if curve is not None:
        yield from price_lines(curve, honest_answers(bundle), bundle.report.get("max_copy"))


def honest_answers(bundle: Bundle) -> int | None:
    """The most distinct honest answers that one client gets; None where the policy sets no bound."""
    bounded = bundle.policy == "sentinel" and not bundle.observe
    return int(bundle.report["honest_answers"]) if bounded else None
