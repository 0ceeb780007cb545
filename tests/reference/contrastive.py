"""The supervised contrastive loss, term by term."""

from __future__ import annotations

import math


def contrastive_loss(points: list[list[float]], labels: list[int], temperature: float, form: str) -> float:
    """Mean over the rows with a partner; `out` has the logarithm inside the mean over partners, `in` outside."""

    def similarity(i: int, j: int) -> float:
        return sum(a * b for a, b in zip(points[i], points[j], strict=True)) / temperature

    rows = range(len(points))
    per_row = []
    for i in rows:
        partners = [j for j in rows if j != i and labels[j] == labels[i]]
        if not partners:
            continue
        total = sum(math.exp(similarity(i, a)) for a in rows if a != i)
        shares = [math.exp(similarity(i, j)) / total for j in partners]
        if form == "out":
            per_row.append(-sum(math.log(share) for share in shares) / len(shares))
        else:
            per_row.append(-math.log(sum(shares) / len(shares)))
    return sum(per_row) / len(per_row)
