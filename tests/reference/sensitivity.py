"""SQS with fifty digits."""

from __future__ import annotations

import mpmath


def sqs(distance: float) -> mpmath.mpf:
    """Half the complementary error function of s - 1."""
    with mpmath.workdps(50):
        return mpmath.erfc(mpmath.mpf(distance) - 1) / 2
