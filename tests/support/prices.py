"""Curves with given figures, and prices measured in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from queen.price.curve import Curve, PriceRow
from queen.price.measure import Pricing

QUICK_PRICE = Pricing(steps=40, epochs=1, seeds=(0, 1))


def curve_of(rows: Sequence[tuple[int, str, bool, float, float, float]]) -> Curve:
    """A curve with rows (answers, images, label_only, low, agreement, high)."""
    return Curve(
        rows=tuple(
            PriceRow(
                answers=answers,
                images=images,
                label_only=label_only,
                low=low,
                agreement=agreement,
                high=high,
                accuracy=None,
                network="mlp",
            )
            for answers, images, label_only, low, agreement, high in rows
        ),
        steps=1500,
        seeds=(0, 1, 2),
        networks=("small_cnn", "mlp"),
        judged=433,
        digits=2,
    )
