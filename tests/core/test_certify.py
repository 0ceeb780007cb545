import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.core.certify import certify, records_bound, recovery
from queen.errors import OptionError
from tests.reference.judge import judge_stream


def test_the_example_of_the_method():
    c = certify(0.1, 0.05, 0.2)
    assert c.eta_hat == pytest.approx(184.4, abs=0.05)
    assert c.rho_paper == pytest.approx(0.0329, abs=5e-5)
    assert c.rho_sound == pytest.approx(0.0659, abs=5e-5)
    assert c.radius == c.rho_sound
    assert c.records_per_class == 185


@given(st.floats(0.01, 0.9), st.floats(1e-6, 0.9), st.floats(0.01, 0.5))
def test_the_sound_radius_keeps_records_at_or_below_eta_hat_and_the_papers_does_not(epsilon, delta, threshold):
    c = certify(epsilon, delta, threshold)
    assert c.rho_sound == pytest.approx(2 * c.rho_paper)
    assert threshold / c.rho_paper**2 == pytest.approx(c.eta_hat, rel=1e-9)
    assert c.records_per_class <= math.ceil(c.eta_hat)
    packing = math.floor((1 + 2 / c.rho_paper) ** 2)
    assert records_bound(c.rho_paper, threshold) >= min(3.99 * c.eta_hat, packing)


def test_a_radius_of_ones_own_is_certified_instead():
    c = certify(0.1, 0.05, 0.2, radius=0.02)
    assert c.radius == 0.02
    assert c.records_per_class == records_bound(0.02, 0.2) == 2000


def test_the_statements_hold_the_numbers_and_what_they_do_not_say():
    text = " ".join(certify(0.1, 0.05, 0.2).statements)
    for part in ("184.4", "0.0329", "0.0659", "185", "does not bound", "do not count"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0, 0.05, 0.2), "epsilon"),
        ((1, 0.05, 0.2), "epsilon"),
        ((math.nan, 0.05, 0.2), "epsilon"),
        ((0.1, 0, 0.2), "delta"),
        ((0.1, 1.0, 0.2), "delta"),
        ((0.1, 0.05, 0), "radius"),  # nothing to give: no radius follows from it
        ((0.1, 0.05, -1), "threshold"),
        ((0.1, 0.05, math.inf), "threshold"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(arguments, names):
    with pytest.raises(OptionError, match=names):
        certify(*arguments)


@pytest.mark.parametrize("radius", [0.0, -0.1, math.nan, math.inf])
def test_a_radius_that_is_not_positive_is_refused(radius):
    with pytest.raises(OptionError, match="radius"):
        certify(0.1, 0.05, 0.2, radius=radius)


@given(st.integers(1, 400), st.integers(0, 400))
def test_the_bound_on_records_is_the_smaller_of_area_and_packing(radius, threshold):
    rho, t = Fraction(radius, 256), Fraction(threshold, 256)  # exact in binary, so no rounding decides
    area, packing = max(1, math.ceil(4 * t / rho**2)), math.floor((1 + 2 / rho) ** 2)
    assert records_bound(float(rho), float(t)) == min(area, packing)


@given(st.floats(1e-4, 3), st.floats(1e-4, 3), st.floats(0, 2), st.floats(0, 2))
def test_the_bound_grows_with_the_threshold_and_falls_with_the_radius(a, b, s, t):
    assert records_bound(max(a, b), min(s, t)) <= records_bound(min(a, b), max(s, t))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.05, 1.5), st.floats(0, 1.5), st.booleans())
def test_no_stream_of_queries_leaves_more_records_than_the_bound(seed, radius, threshold, rim):
    generator = np.random.default_rng(seed)
    angle, length = generator.uniform(0, 2 * np.pi, 600), generator.uniform(0, 1, 600) ** 0.5
    length = 1 - 0.02 * length if rim else length  # points near the rim cost least
    points = np.stack([length * np.cos(angle), length * np.sin(angle)], 1)
    letters, _ = judge_stream([0] * 600, points.tolist(), radius, threshold)
    assert letters.count("C") <= records_bound(radius, threshold)


def test_the_papers_count_is_too_low():
    angle = np.linspace(0, 2 * np.pi, 5000)
    rings = [r * np.stack([np.cos(angle), np.sin(angle)], 1) for r in (0.999, 0.9, 0.8, 0.7)]
    letters, _ = judge_stream([0] * 20_000, np.concatenate(rings).tolist(), 0.09, 0.2)
    assert 2 * 0.2 / 0.09**2 < letters.count("C") <= records_bound(0.09, 0.2)


def dirichlet(rows, classes, seed, concentration=1.0):
    return np.random.default_rng(seed).dirichlet([concentration] * classes, rows)


def test_honest_answers_can_be_recovered_without_error():
    y = dirichlet(500, 4, 0)
    result = recovery(y, y.copy())
    assert (result.rows, result.bound, result.fitted) == (500, 0.0, 0.0)


@pytest.mark.parametrize(("classes", "rows"), [(2, 1000), (3, 2000), (4, 3000), (10, 200), (10, 2000)])
def test_answers_that_say_nothing_have_a_bound_above_zero_and_below_any_recovery(classes, rows):
    y, noise = dirichlet(rows, classes, 0), dirichlet(rows, classes, 1)
    result = recovery(y, noise)
    assert result.fitted == pytest.approx(y.var(0).sum(), rel=0.25)  # nothing beats the mean
    assert 0 < result.bound <= result.fitted


def test_the_bound_of_independent_answers_is_the_one_the_entropy_gives():
    y, noise = dirichlet(8000, 3, 0), dirichlet(8000, 3, 1)
    exact = 2 / (2 * math.pi * math.e) * math.exp(-math.log(2))  # uniform on a triangle of area 1/2
    assert recovery(y, noise).bound == pytest.approx(exact, rel=0.3)


def permuted(y):
    return np.roll(y, 1, axis=1)


def flattened(y):
    return np.sqrt(y) / np.sqrt(y).sum(1, keepdims=True)


@pytest.mark.parametrize("change", [permuted, flattened])
@pytest.mark.parametrize(("classes", "rows"), [(2, 500), (3, 2000), (10, 2000)])
def test_answers_that_can_be_undone_promise_nothing(change, classes, rows):
    y = dirichlet(rows, classes, 0)
    result = recovery(y, change(y))
    assert result.bound <= 0.02 * y.var(0).sum()


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("classes", [3, 10])
def test_no_bound_exceeds_an_error_that_was_reached(classes, share):
    y, noise = dirichlet(2000, classes, 0), dirichlet(2000, classes, 1)
    result = recovery(y, (1 - share) * y + share * noise)
    assert result.bound <= result.fitted


def test_more_noise_gives_a_larger_bound():
    y, other = dirichlet(2000, 3, 0), dirichlet(2000, 3, 1)
    bounds = [recovery(y, (1 - share) * y + share * other).bound for share in (0.05, 0.2, 0.5, 1.0)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1] / 5


def test_ties_and_too_few_rows_promise_nothing():
    y = dirichlet(300, 3, 0)
    constant = np.full((300, 3), 1 / 3)
    assert recovery(y, constant).bound == 0.0
    assert recovery(y, np.eye(3)[y.argmax(1)]).bound == 0.0
    assert recovery(y[:20], dirichlet(20, 3, 1)).bound == 0.0
    assert recovery(y[:21], dirichlet(21, 3, 1)).bound > 0.0


def test_the_fitted_recovery_undoes_a_permutation_and_falls_back_on_the_mean():
    y = dirichlet(2000, 3, 0)
    assert recovery(y, permuted(y)).fitted < 0.01 * y.var(0).sum()
    assert recovery(y, np.full((2000, 3), 1 / 3)).fitted == pytest.approx(y.var(0).sum(), rel=0.1)
    assert recovery(y[:1], y[:1]).fitted == 0.0
