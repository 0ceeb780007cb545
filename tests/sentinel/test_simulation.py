"""The certificate, simulated: calibration draws, benign clients, and the same check on things that must fail it.

The statement: with confidence 1 - delta over the calibration draw, a benign client is ever accused with probability at
most alpha. So of many draws at most a share delta may have an ever-accused rate above alpha.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from queen.options import Sentinel
from queen.sentinel.bands import p_values
from queen.sentinel.evidence import EXPONENTS, Evidence, first_alarm, step

POWERS = np.array(EXPONENTS)[:, None]
QUERIES = 7_000
DRAWS, CLIENTS = 300, 8
Table = NDArray[np.float64]


def mixture(time: int) -> float:
    return 0.5 / (time * (time + 1)) + (0.5 if time == 1 else 0.0)


def product(time: int) -> float:
    return float(time == 1)


def too_generous(time: int) -> float:
    """A planted bug: fresh money for every query, so that the weights do not sum to 1."""
    return 0.5


def three_times(time: int) -> float:
    return 3 * mixture(time)


def highest_wealth(ranks: NDArray[np.integer], table: Table, money=mixture, *, floor: float = 0.0) -> Table:
    """The highest mean wealth of every client (column) of a stream of ranks (queries, clients), p = table[rank]."""
    factors = POWERS * table ** (POWERS - 1)
    wealth = np.zeros((len(EXPONENTS), ranks.shape[1]))
    drawn, highest = np.empty_like(wealth), np.zeros(ranks.shape[1])
    for time, row in enumerate(ranks, start=1):
        np.take(factors, row, axis=1, out=drawn, mode="clip")
        wealth += money(time)
        np.maximum(wealth, floor, out=wealth)
        wealth *= drawn
        np.maximum(highest, wealth.mean(0), out=highest)
    return highest


@pytest.mark.parametrize(
    ("form", "money", "floor"), [("mixture", mixture, 0), ("product", product, 0), ("cusum", lambda _: 0.0, 1)]
)
def test_the_fast_wealth_is_the_ledgers(form, money, floor):
    rng = np.random.default_rng(0)
    table = p_values(50, 0.2)
    ranks = np.minimum(rng.integers(0, 51, (400, 5)), rng.integers(0, 51, (400, 5)))
    fast = highest_wealth(ranks, table, money, floor=floor)
    for client in range(5):
        wealth, highest = [0.0] * len(EXPONENTS), 0.0
        for placed, rank in enumerate(ranks[:, client]):
            p = float(table[rank])
            wealth, total = step(wealth, tuple(e * p ** (e - 1) for e in EXPONENTS), placed, form)
            highest = max(highest, total / len(EXPONENTS))
        assert fast[client] == pytest.approx(highest, rel=1e-9)


@cache
def streams(count: int) -> NDArray[np.int16]:
    """Ranks (queries, draws x clients) of benign clients among the `count` scores of their calibration draw.

    Scores are uniform, which is no restriction: ranks do not depend on the law of a continuous score.
    """
    rng = np.random.default_rng(count)
    ranks = np.empty((QUERIES, DRAWS, CLIENTS), np.int16)
    for draw in range(DRAWS):
        higher = np.sort(rng.random(count))  # probabilities of scoring higher than each calibration score
        ranks[:, draw] = np.searchsorted(higher, rng.random((QUERIES, CLIENTS), np.float32))
    return ranks.reshape(QUERIES, -1)


def test_ranks_of_uniforms_are_ranks_of_any_scores():
    """And the ranks lead to the p-values that `Evidence` gives."""
    rng = np.random.default_rng(0)
    calibration, client = norm.isf(rng.random(200)), norm.isf(rng.random(500))
    ranks = np.searchsorted(np.sort(norm.sf(calibration)), norm.sf(client))
    evidence = Evidence(np.zeros(200, np.int64), calibration[:, None], np.zeros(200), 1, Sentinel(delta=0.2))
    table = p_values(200, 0.2)
    assert evidence.bets([0] * 500, [client.tolist()]) == [evidence.factors(table[r]) for r in ranks]


CHANCE = 1e-3  # that a draw whose rate is alpha looks bad


def bad_draws(highest: Table, alpha: float) -> int:
    """How many draws have an ever-accused rate above alpha, beyond doubt."""
    accused = (highest.reshape(DRAWS, CLIENTS) >= 1 / alpha).sum(1)
    return int((accused > binom.isf(CHANCE, CLIENTS, alpha)).sum())


def holds(highest: Table, alpha: float, delta: float) -> bool:
    """The check: there are no more bad draws than a share delta explains."""
    return bool(bad_draws(highest, alpha) <= binom.isf(1e-3, DRAWS, delta + CHANCE))


def fails_clearly(highest: Table, alpha: float, delta: float) -> bool:
    return bool(bad_draws(highest, alpha) > binom.isf(1e-5, DRAWS, delta + CHANCE))


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("count", [200, 1000])
def test_the_certificate_holds(count, delta):
    highest = highest_wealth(streams(count), p_values(count, delta))
    for alpha in (0.1, 0.01):
        assert holds(highest, alpha, delta)


def test_trap_1_plain_p_values_fail_the_check():
    highest = highest_wealth(streams(200), np.arange(1, 202) / 201)
    for alpha in (0.1, 0.01):
        assert fails_clearly(highest, alpha, 0.05)


@pytest.mark.slow
def test_trap_1_plain_p_values_fail_the_check_with_more_images_too_only_later():
    """With 1,000 images wealth creeps up in fewer draws, so the same check needs a smaller delta to see them."""
    plain, band = (highest_wealth(streams(1000), p) for p in (np.arange(1, 1002) / 1001, p_values(1000, 0.005)))
    for alpha in (0.1, 0.01):
        assert holds(band, alpha, 0.005)
        assert not holds(plain, alpha, 0.005)


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, 1000])
def test_fresh_money_for_every_query_fails_the_check(count):
    highest = highest_wealth(streams(count), p_values(count, 0.2), too_generous)
    assert fails_clearly(highest, 0.1, 0.2)


def test_a_band_at_the_wrong_rank_fails_the_check():
    """Counting a tenth of the calibration scores too few; off by one alone hides in the band's width."""
    shifted = p_values(200, 0.05)[np.maximum(np.arange(201) - 20, 0)]
    with np.errstate(over="ignore"):
        highest = highest_wealth(streams(200), shifted)
    for alpha in (0.1, 0.01):
        assert fails_clearly(highest, alpha, 0.05)


def growth(table: Table, count: int, draws: int = 2000) -> tuple[int, int]:
    """In how many calibration draws the mean of some bet is above 1, and in how many the mean of its logarithm above 0.

    Exact for every draw. In the first Ville's bound does not hold; in the second every client is accused in the end.
    """
    uniforms = np.sort(np.random.default_rng(2).random((draws, count)), axis=1)
    chances = np.diff(uniforms, axis=1, prepend=0, append=1)  # of every rank
    factors = POWERS * table ** (POWERS - 1)
    above, doomed = chances @ factors.T > 1, chances @ np.log(factors).T > 0
    return int(above.any(1).sum()), int(doomed.any(1).sum())


@pytest.mark.parametrize("delta", [0.005, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("count", [20, 200, 1000])
def test_bets_lose_on_average_in_all_but_a_share_delta_of_draws(count, delta):
    above, _ = growth(p_values(count, delta), count)
    assert above <= binom.isf(1e-3, 2000, delta)


@pytest.mark.parametrize("count", [20, 200, 1000])
def test_trap_1_bets_on_plain_p_values_win_in_many_draws(count):
    above, doomed = growth(np.arange(1, count + 2) / (count + 1), count)
    assert above > binom.isf(1e-9, 2000, 0.1)
    assert doomed > binom.isf(1e-9, 2000, 0.01)


EXACT = 4000, 2000  # clients, queries


def exactly_uniform(money, *, floor: float = 0.0) -> Table:
    clients, queries = EXACT
    values = 10_000  # p-values i / values, each as likely: super-uniform, and uniform but for the grid
    ranks = np.random.default_rng(7).integers(0, values, (queries, clients), np.int16)
    return highest_wealth(ranks, np.arange(1, values + 1) / values, money, floor=floor)


@pytest.mark.parametrize("money", [mixture, product])
def test_with_exactly_uniform_p_values_villes_bound_holds_and_is_not_idle(money):
    highest = exactly_uniform(money)
    for alpha in (0.2, 0.1, 0.02):
        accused = (highest >= 1 / alpha).sum()
        assert accused <= binom.isf(1e-3, EXACT[0], alpha)
        assert accused >= EXACT[0] * alpha / 10


def test_money_that_sums_to_three_breaks_villes_bound():
    accused = (exactly_uniform(three_times) >= 1 / 0.2).sum()
    assert accused > binom.isf(1e-3, EXACT[0], 0.2)


def test_the_cusum_bounds_the_mean_time_to_a_false_alarm_and_not_that_one_ever_comes():
    highest = exactly_uniform(lambda _: 0.0, floor=1)
    assert (highest >= 100).sum() > 3 * binom.isf(1e-6, EXACT[0], 0.01)  # ever accused: far above alpha
    rng, times = np.random.default_rng(8), []
    for _ in range(200):
        wealth, time = np.zeros(len(EXPONENTS)), 0
        while wealth.mean() < 20:
            wealth = np.maximum(wealth, 1) * POWERS[:, 0] * rng.random() ** (POWERS[:, 0] - 1)
            time += 1
        times.append(time)
    assert np.mean(times) >= 20


def test_a_client_of_the_real_thing_lives_for_ever():
    """A few whole streams through `Evidence.bets` and `first_alarm`, normal scores, two classes."""
    rng = np.random.default_rng(5)
    labels = np.repeat([0, 1], 500)
    calibration = rng.normal(3 * labels, 1 + labels)
    evidence = Evidence(labels, calibration[:, None], np.zeros(1000), 2, Sentinel())
    for share in (0.0, 0.5, 1.0):  # of class 1: a mixed client and two of one class
        mine = (rng.random(QUERIES) < share).astype(int)
        bets = evidence.bets(mine.tolist(), [rng.normal(3 * mine, 1 + mine).tolist()])
        assert first_alarm(bets, "mixture", evidence.size, evidence.size / 0.01) is None
        foreign = evidence.bets(mine[:300].tolist(), [rng.normal(3 * mine[:300] + 3, 1 + mine[:300]).tolist()])
        assert first_alarm(foreign, "mixture", evidence.size, evidence.size / 0.01) is not None
