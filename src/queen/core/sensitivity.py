"""How sensitive one query is (SQS, Definition 2) and what it adds to its class's coverage (CQS, Definition 3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfc

RIM = 0.25 * (1 + 1e-12)  # the least SQS^2 of a recorded query
Floats = NDArray[np.float64]


def single_query_sensitivity(distance: ArrayLike) -> Floats:
    """SQS = erfc(s - 1) / 2 for relative distances s = |z - c| / d, any shape.

    >>> single_query_sensitivity([0.0, 1.0]).round(6).tolist()
    [0.92135, 0.5]
    """
    return np.asarray(0.5 * erfc(np.asarray(distance, dtype=np.float64) - 1.0))


def inside(points: Floats) -> NDArray[np.bool_]:
    """(n, 2) relative points -> (n,) whether x*x + y*y < 1, without norm or fused multiply-add.

    A norm rounds differently and would put (.28, .96) inside.
    """
    x, y = points[:, 0], points[:, 1]
    return np.asarray(x * x + y * y < 1.0)


def query_area(x: float, y: float, radius: float) -> float:
    """What a recorded query at the relative point (x, y) adds to CQS: rho^2 * SQS^2.

    Computed on plain numbers with libm's erfc, so that every ledger adds the same doubles whatever batch a query came
    in. The bound on records rests on SQS > 1/2 inside the disc; at the very rim rounding would make it 1/2, hence the
    floor RIM a hair above its square.
    """
    sensitivity = 0.5 * math.erfc(math.sqrt(x * x + y * y) - 1.0)
    return radius * radius * max(sensitivity * sensitivity, RIM)
