"""The verdict table, read aloud: one client, one query after the other, every pair compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import erfc  # the one the package uses: math.erfc may differ in the last bit


def judge_stream(
    labels: Sequence[int],
    points: Sequence[Sequence[float]],
    radius: float | Sequence[float],
    threshold: float,
) -> tuple[str, list[bool]]:
    """One letter a row, and whether the row's class was spent before the row came."""
    records: dict[int, list[tuple[float, float]]] = {}
    cqs: dict[int, float] = {}
    letters, spents = "", []
    for raw_label, (raw_x, raw_y) in zip(labels, points, strict=True):
        label, x, y = int(raw_label), float(raw_x), float(raw_y)
        rho = float(radius if isinstance(radius, int | float) else radius[label])
        spent = cqs.get(label, 0.0) > threshold
        spents.append(spent)
        overlap = False
        for rx, ry in records.get(label, []):
            dx, dy = x - rx, y - ry
            if dx * dx + dy * dy < rho * rho:
                overlap = True
        if not x * x + y * y < 1.0:
            letters += "A"
        elif overlap:
            letters += "D"
        elif spent:
            letters += "B"
        else:
            letters += "C"
            sqs = 0.5 * float(erfc(math.sqrt(x * x + y * y) - 1.0))
            records.setdefault(label, []).append((x, y))
            cqs[label] = cqs.get(label, 0.0) + rho * rho * (sqs * sqs)
    return letters, spents
