"""The verdict table, read aloud: one client, one query after the other, every pair compared."""

from __future__ import annotations

import math
from collections.abc import Sequence


class BruteForce:
    """One client's records; goes on from call to call, also with other limits."""

    def __init__(self) -> None:
        self.points: dict[int, list[tuple[float, float]]] = {}
        self.cqs: dict[int, float] = {}

    def judge(
        self,
        labels: Sequence[int],
        points: Sequence[Sequence[float]],
        radius: float | Sequence[float],
        threshold: float,
    ) -> tuple[str, list[bool]]:
        """One letter a row, and whether the row's class was spent before the row came."""
        letters, spents = "", []
        for raw_label, (raw_x, raw_y) in zip(labels, points, strict=True):
            label, x, y = int(raw_label), float(raw_x), float(raw_y)
            rho = float(radius if isinstance(radius, int | float) else radius[label])
            spent = self.cqs.get(label, 0.0) > threshold
            spents.append(spent)
            overlap = False
            for rx, ry in self.points.get(label, []):
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
                sqs = 0.5 * math.erfc(math.sqrt(x * x + y * y) - 1.0)
                square = max(sqs * sqs, 0.25 * (1 + 1e-12))  # SQS > 1/2 inside, also where rounding says 1/2
                self.points.setdefault(label, []).append((x, y))
                self.cqs[label] = self.cqs.get(label, 0.0) + rho * rho * square
        return letters, spents


def judge_stream(
    labels: Sequence[int], points: Sequence[Sequence[float]], radius: float | Sequence[float], threshold: float
) -> tuple[str, list[bool]]:
    """A client that starts from nothing."""
    return BruteForce().judge(labels, points, radius, threshold)
