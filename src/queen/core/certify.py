"""What can be promised: the paper's Theorems 2 and 3, a sound version of Theorem 2, and a bound on records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import digamma, gammaln

from queen.core.sensitivity import Floats
from queen.errors import OptionError
from queen.options import MAX_RADIUS, MIN_RADIUS

NEIGHBOURS = 5  # of a point, from which entropies and dimensions are estimated


@dataclass(frozen=True)
class Certificate:
    """What a radius and a threshold imply; `statements` says what each number does and does not promise."""

    epsilon: float
    delta: float
    threshold: float
    radius: float
    eta_hat: float
    rho_paper: float
    rho_sound: float
    records_per_class: int

    @property
    def statements(self) -> tuple[str, ...]:
        """The certificate in words."""
        return (
            f"Theorem 2 of the paper allows {self.eta_hat:.1f} honest answers in each class, for epsilon = "
            f"{self.epsilon:g} and delta = {self.delta:g}. It is a rule for choosing the radius. It does not bound a "
            "thief's error from below.",
            f"With the paper's radius {self.rho_paper:.4f} a class may hold up to 4 times as many records as the paper "
            "counts (t / rho^2), because the area of a record is scaled by SQS^2, which lies between 1/4 and .85.",
            f"The sound radius {self.rho_sound:.4f} keeps the records of a class at or below "
            f"{math.ceil(self.eta_hat)}, the number that the theorem allows, rounded up.",
            f"At radius {self.radius:.4f} at most {self.records_per_class} answers to one client are recorded in a "
            "class.",
            "These numbers do not count answers outside the disc (verdict A) and repeats (verdict D).",
        )


def records_bound(radius: float, threshold: float) -> int:
    """The most records one client can leave in one class: the smaller of two proven bounds.

    Area: each record adds more than rho^2 / 4, because SQS > 1/2 inside the disc, and the last of n records was made
    while CQS <= t, so (n - 1) rho^2 / 4 < t, that is n <= max(1, ceil(4 t / rho^2)).
    Packing: records are at least rho apart inside the unit disc, so at most (1 + 2 / rho)^2.
    """
    by_area = max(1, math.ceil(4 * threshold / radius**2))
    return min(by_area, math.floor((1 + 2 / radius) ** 2))


def certify(epsilon: float, delta: float, threshold: float, *, radius: float | None = None) -> Certificate:
    """Theorem 2 (the printed form and the sound form) and the record bound at `radius` (default: the sound one).

    >>> c = certify(.1, .05, .2)
    >>> round(c.eta_hat), round(c.rho_paper, 4), round(c.rho_sound, 4), c.records_per_class
    (184, 0.0329, 0.0659, 185)
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            raise OptionError(f"{name} must lie strictly between 0 and 1, got {value}")
    if not 0 <= threshold < 1e6:
        raise OptionError(f"threshold must lie between 0 and 1e6, got {threshold}")
    log_term = math.log(2) - math.log(delta)
    rho_paper = epsilon * math.sqrt(2 * threshold / log_term)
    rho_sound = 2 * rho_paper
    radius = rho_sound if radius is None else radius
    if not MIN_RADIUS <= radius <= MAX_RADIUS:
        raise OptionError(f"radius must lie between {MIN_RADIUS} and {MAX_RADIUS:g}, got {radius}")
    eta_hat = log_term / (2 * epsilon**2)
    return Certificate(
        epsilon, delta, threshold, radius, eta_hat, rho_paper, rho_sound, records_bound(radius, threshold)
    )


@dataclass(frozen=True)
class Recovery:
    """Theorem 3 for one verdict: no recovery function gets below `bound`; the best one we fitted reached `fitted`.

    Both are mean squared errors per query, in units of probability, over `rows` queries.
    """

    rows: int
    bound: float
    fitted: float


def recovery(honest: Floats, returned: Floats) -> Recovery:
    """Theorem 3 estimated on (n, K) honest and returned vectors of one verdict.

    The entropy h(Y | Y~) = h(Y, Y~) - h(Y~) is estimated with nearest neighbours on the first K-1 coordinates (they
    determine the last). Where the answer y~ is honest, or determines y in another way, the entropy is minus infinity
    and the bound is 0; it is also 0 where too few rows or ties make the estimate meaningless. That y~ determines y is
    recognised by dimension: (y, y~) then fills no more dimensions than y~ alone.

    Paper: the printed bound has MN coordinates; on the simplex only M (N - 1) are free, and it is stated per query.
    """
    rows, classes = honest.shape
    fitted = _best_fitted_error(honest, returned)
    if rows <= 4 * NEIGHBOURS or np.allclose(honest, returned, atol=1e-6):
        return Recovery(rows, 0.0, fitted)
    free = classes - 1
    joint = _entropy(np.hstack([honest[:, :-1], returned[:, :-1]]))
    alone = _entropy(returned[:, :-1])
    tied = not (math.isfinite(joint) and math.isfinite(alone))
    if tied or _dimension(np.hstack([honest, returned])) < 1.1 * _dimension(returned):
        return Recovery(rows, 0.0, fitted)
    bound = free / (2 * math.pi * math.e) * math.exp(2 * (joint - alone) / free)
    return Recovery(rows, min(bound, fitted), fitted)  # a recovery that did better refutes the estimate


def _dimension(points: Floats) -> float:
    """Levina-Bickel estimate of how many dimensions the points really fill."""
    distance = cKDTree(points).query(points, NEIGHBOURS + 1)[0][:, 1:]
    ratio = distance[:, -1:] / np.maximum(distance[:, :-1], 1e-300)
    return 1 / float(np.log(ratio).mean())


def _entropy(points: Floats) -> float:
    """Kozachenko-Leonenko estimate of the differential entropy, in nats; -inf when neighbours coincide."""
    count, dims = points.shape
    distance = cKDTree(points).query(points, NEIGHBOURS + 1)[0][:, -1]
    if not (distance > 0).all():
        return -math.inf
    log_ball = dims / 2 * math.log(math.pi) - float(gammaln(dims / 2 + 1))
    return float(digamma(count) - digamma(NEIGHBOURS) + log_ball + dims * np.log(distance).mean())


def _best_fitted_error(honest: Floats, returned: Floats) -> float:
    """Squared error of the best of four recoveries, fitted on the even rows and tried on the odd ones.

    The four: the answer as it is, the mean honest answer, and nearest-neighbour regression with 1 and 10 neighbours.
    """
    fit_y, try_y, fit_r, try_r = honest[::2], honest[1::2], returned[::2], returned[1::2]
    if len(try_y) == 0:
        return 0.0
    guesses = [try_r, np.broadcast_to(fit_y.mean(0), try_y.shape)]
    tree = cKDTree(fit_r)
    for k in (1, 10):
        if k <= len(fit_y):
            nearest = tree.query(try_r, k)[1].reshape(len(try_r), k)
            guesses.append(fit_y[nearest].mean(1))
    return min(float(np.square(guess - try_y).sum(1).mean()) for guess in guesses)
