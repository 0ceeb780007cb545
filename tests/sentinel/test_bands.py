"""Bands against exact fractions and against draws; every statistical check also meets a band that it must turn down."""

from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv
from scipy.stats import binom

from queen.sentinel.bands import noncrossing, p_values, upper_band


def exact(band: list[Fraction]) -> Fraction:
    """P(U_(i) <= band_i for all i) by counting the points in every gap between bounds: a sum of multinomials."""
    count, edges = len(band), [Fraction(0), *band]
    ways = {0: Fraction(1)}  # points so far -> weight
    for i in range(1, count + 1):
        gap, after = edges[i] - edges[i - 1], {}
        for so_far, weight in ways.items():
            for more in range(max(0, i - so_far), count - so_far + 1):
                after[so_far + more] = after.get(so_far + more, 0) + weight * gap**more / factorial(more)
        ways = after
    return ways.get(count, Fraction(0)) * factorial(count)


def sorted_uniforms(draws: int, count: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).random((draws, count)), axis=1)


def is_likely(hits: int, draws: int, share: float, level: float = 1e-3) -> bool:
    """Whether so many hits lie in the two-sided binomial interval of `share`."""
    low, high = binom.interval(1 - level, draws, share)
    return bool(low <= hits <= high)


def crossings(band: np.ndarray, draws: int = 20_000, seed: int = 0) -> int:
    return int((sorted_uniforms(draws, len(band), seed) > band).any(1).sum())


@given(st.floats(0, 1))
def test_one_point_stays_below_its_bound_with_exactly_that_probability(bound):
    assert noncrossing(np.array([bound])) == pytest.approx(bound, abs=1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
def test_two_points_have_a_closed_form(a, b):
    first, second = sorted((a, b))
    both_below, both_late = second**2, (second - first) ** 2
    assert noncrossing(np.array([first, second])) == pytest.approx(both_below - both_late, abs=1e-12)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 64), min_size=1, max_size=9))
def test_any_band_is_what_exact_fractions_give(numbers):
    band = [Fraction(n, 64) for n in sorted(numbers)]
    found = noncrossing(np.array([float(b) for b in band]))
    assert found == pytest.approx(float(exact(band)), abs=1e-12)


def test_the_exact_reference_knows_the_closed_form_and_another():
    half, most = Fraction(1, 2), Fraction(9, 10)
    assert exact([half, most]) == most**2 - (most - half) ** 2
    assert exact([half] * 5) == half**5


@pytest.mark.parametrize(
    "band",
    [
        np.linspace(0.05, 1, 30),
        np.full(12, 0.9),
        np.repeat([0.2, 0.5, 0.8, 1.0], 5),
        np.append(np.full(39, 0.97), 1.0),
        np.sqrt(np.arange(1, 101) / 100),
    ],
    ids=["straight", "flat", "stairs", "all but one", "root"],
)
def test_odd_bands_hold_as_often_as_they_do_in_draws(band):
    holds = 20_000 - crossings(band, seed=len(band))
    assert is_likely(holds, 20_000, noncrossing(band))
    assert not is_likely(holds, 20_000, noncrossing(np.clip(band + 0.02, 0, 1)))


def test_impossible_and_certain_bands():
    assert noncrossing(np.array([0.0, 1.0])) == 0.0
    assert noncrossing(np.ones(50)) == pytest.approx(1, abs=1e-12)
    assert noncrossing(np.append(np.zeros(3), np.ones(500))) == 0.0


BOUNDS = [(20, 0.05), (20, 0.5), (200, 0.05), (200, 0.2)]


@pytest.mark.parametrize(("count", "delta"), BOUNDS)
def test_the_band_is_crossed_in_a_share_delta_of_draws(count, delta):
    assert is_likely(crossings(upper_band(count, delta)), 20_000, delta)


@pytest.mark.parametrize(("count", "delta"), BOUNDS)
def test_an_off_by_one_rank_fails_that_check(count, delta):
    band = upper_band(count, delta)
    too_low = np.concatenate([band[:1], band[:-1]])  # bound i - 1 in the place of bound i
    too_high = np.concatenate([band[1:], band[-1:]])
    assert crossings(too_low) > binom.isf(1e-9, 20_000, delta)
    assert crossings(too_high) < binom.isf(1 - 1e-9, 20_000, delta)


@pytest.mark.parametrize(("count", "delta"), BOUNDS)
def test_pointwise_bounds_fail_that_check(count, delta):
    i = np.arange(1, count + 1)
    pointwise = betaincinv(i, count - i + 1.0, 1 - delta)
    assert crossings(pointwise) > binom.isf(1e-9, 20_000, delta)


@settings(max_examples=40)
@given(st.integers(1, 150), st.floats(1e-4, 0.9))
def test_the_band_has_exactly_its_level_and_never_more(count, delta):
    band = upper_band(count, delta)
    crossed = 1 - noncrossing(band)
    assert delta * (1 - 1e-4) <= crossed <= delta + 1e-12


@settings(max_examples=40)
@given(st.integers(1, 120), st.floats(1e-4, 0.9), st.floats(1e-4, 0.9))
def test_the_band_rises_with_the_rank_and_falls_with_delta(count, a, b):
    bold, timid = upper_band(count, max(a, b)), upper_band(count, min(a, b))
    assert (np.diff(bold) > 0).all()
    assert ((bold > 0) & (bold < 1)).all()
    assert (timid >= bold - 1e-9).all()


def test_more_images_make_a_narrower_band():
    smallest = [upper_band(n, 0.05)[0] for n in (1, 2, 5, 20, 100, 500)]
    assert smallest == sorted(smallest, reverse=True)
    middle = [upper_band(n, 0.05)[n // 2] - (n // 2 + 1) / (n + 1) for n in (1, 5, 21, 101, 501)]
    assert middle == sorted(middle, reverse=True)


def test_p_values_are_the_band_by_rank_and_one_at_the_end():
    assert p_values(3, 0.1).tolist() == [*upper_band(3, 0.1).tolist(), 1.0]
    assert p_values(0, 0.1).tolist() == [1.0]
    assert p_values(1, 0.25).tolist() == [0.75, 1.0]


@pytest.mark.parametrize(
    ("count", "delta"),
    [(1, 1e-100), (2, 1e-9), (2, 1e-10), (2, 1e-100), (5, 1e-100), (20, 1e-15), (200, 1e-13), (1000, 1e-17)],
)
def test_any_delta_that_settings_allow_gives_a_band_that_is_not_bolder(count, delta):
    band = upper_band(count, delta)
    assert (np.diff(band) >= 0).all()
    assert (band >= upper_band(count, 1e-6)).all()
    assert ((band > 0) & (band <= 1)).all()


def test_nobody_can_change_a_cached_band():
    for cached in (upper_band(7, 0.1), p_values(7, 0.1)):
        with pytest.raises(ValueError, match="read-only"):
            cached[0] = 0.5


LAWS = {
    "few values": np.array([0.4, 0.3, 0.15, 0.1, 0.05]),
    "two values": np.array([0.9, 0.1]),
    "one value": np.array([1.0]),
    "many values": np.full(400, 1 / 400),
}


def bad_draws(law: np.ndarray, count: int, delta: float, *, draws: int = 4000, optimistic: bool = False) -> int:
    """In how many calibration draws a p-value is not super-uniform; scores are 0, 1, ... with probabilities `law`.

    The p-value falls with the score, so its law is known: P(p <= p(s)) = P(S >= s).
    """
    drawn = np.random.default_rng(1).multinomial(count, law, size=draws)
    reach = drawn[:, ::-1].cumsum(1)[:, ::-1]  # calibration scores >= s
    rank = reach - drawn if optimistic else reach
    true = law[::-1].cumsum()[::-1]  # P(S >= s)
    found = p_values(count, delta)[rank]
    return int((found < true - 1e-12).any(1).sum())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [20, 200])
def test_p_values_are_super_uniform_with_ties(law, count):
    assert bad_draws(LAWS[law], count, 0.1) <= binom.isf(1e-3, 4000, 0.1)


@pytest.mark.parametrize("law", ["few values", "two values", "one value"])
def test_ties_counted_in_ones_own_favour_fail_that_check(law):
    assert bad_draws(LAWS[law], 200, 0.1, optimistic=True) > binom.isf(1e-9, 4000, 0.1)


def test_p_values_of_continuous_scores_fail_in_just_the_share_delta():
    """Not only below delta: the band is exact, so power is not wasted."""
    uniforms = sorted_uniforms(4000, 50, 3)  # true probabilities of scoring higher than each calibration score
    worst = np.concatenate([uniforms, np.ones((4000, 1))], 1)  # the largest true p-value at each rank
    bad = (worst > p_values(50, 0.1)).any(1).sum()
    assert is_likely(int(bad), 4000, 0.1)
