"""Upper confidence bands for uniform order statistics: what makes p-values valid given one calibration set.

Of n calibration scores let U_(1) <= ... <= U_(n) be the true probabilities of scoring higher than each. They are
unknown, but distributed as sorted uniforms, so U_(i) <= b_i for all i at once with probability 1 - delta when b_i is
the (1 - level) quantile of Beta(i, n - i + 1) and `level` is chosen to make it so (the Berk-Jones form). A new score
that r calibration scores reach or exceed then has true p-value at most b_(r+1), whatever the calibration set was.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainccinv

from queen.core.sensitivity import Floats

NEGLIGIBLE = 1e-22  # probability that may be dropped; doing so only widens the band
SMALLEST = 1e-9  # a smaller delta would drown in the rounding of 1 - delta


@lru_cache(maxsize=1024)
def upper_band(count: int, delta: float) -> Floats:
    """(count,) bounds b with P(U_(i) <= b_i for all i) = 1 - delta, read-only."""
    band = _quantiles(count, _level(count, delta))
    band.flags.writeable = False
    return band


@lru_cache(maxsize=1024)
def p_values(count: int, delta: float) -> Floats:
    """(count + 1,) p-values by rank r, the number of calibration scores >= the new one; read-only."""
    values = np.append(upper_band(count, delta) if count else np.empty(0), 1.0)
    values.flags.writeable = False
    return values


def noncrossing(band: Floats) -> float:
    """P(U_(i) <= band_i for all i) for sorted uniforms, to about 1e-12 and never too high.

    The number of points below t, started as a Poisson process of rate n and later conditioned on n points in all, is
    followed from bound to bound: at band_i it must have reached i. Every term is positive, so nothing cancels.
    """
    count = len(band)
    ways = np.ones(1)  # ways[j]: probability of `low + j` points so far, no bound missed
    low, before = 0, 0.0
    for i, bound in enumerate(band, start=1):
        ways = np.convolve(ways, _poisson(count * (bound - before)))
        ways = ways[i - low :][: count - i + 1]  # at least i, at most all
        ways = _trim(ways)
        if len(ways) == 0:
            return 0.0
        low, before = i, bound
    # `count` points by the last bound, and none after it.
    log_all = count * math.log(count) - count - math.lgamma(count + 1)
    return min(1.0, float(ways[0]) * math.exp(-count * (1.0 - before) - log_all))


def _level(count: int, delta: float) -> float:
    """The pointwise level at which the whole band holds with probability 1 - delta."""

    def excess(log_level: float) -> float:
        return noncrossing(_quantiles(count, math.exp(log_level))) - (1 - delta)

    if count == 1:
        return delta
    # Pointwise at delta is too bold (n > 1), the union bound delta / n too timid, but good enough for a tiny delta.
    low, high = math.log(delta / count), math.log(delta)
    if delta < SMALLEST:
        return math.exp(low)
    log_level = float(brentq(excess, low, high, xtol=1e-5))
    while excess(log_level) < 0:  # the root finder may stop on the bold side
        log_level -= 1e-5
    return math.exp(log_level)


def _quantiles(count: int, level: float) -> Floats:
    i = np.arange(1, count + 1)
    return np.asarray(betainccinv(i, count - i + 1.0, level), np.float64)


def _poisson(mean: float) -> Floats:
    """Probabilities of 0, 1, ... points, up to where the rest is negligible."""
    longest = int(mean + 12 * math.sqrt(mean) + 30)
    j = np.arange(longest + 1)
    log_factorial = np.concatenate([[0.0], np.log(np.arange(1, longest + 1)).cumsum()])
    return np.asarray(np.exp(j * math.log(mean) - mean - log_factorial) if mean > 0 else (j == 0).astype(float))


def _trim(ways: Floats) -> Floats:
    """Without the far tail, which a path almost surely never visits."""
    keep = np.flatnonzero(ways > NEGLIGIBLE)
    return ways[: keep[-1] + 1] if len(keep) else ways[:0]
