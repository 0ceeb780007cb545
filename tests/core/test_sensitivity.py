import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad

from queen.core.sensitivity import inside, query_area, single_query_sensitivity
from tests.reference.sensitivity import sqs

unit = st.floats(-1, 1)


@pytest.mark.parametrize(
    ("distance", "value"), [(0, 0.921350), (0.25, 0.855578), (0.5, 0.760250), (0.75, 0.638163), (1, 0.5)]
)
def test_the_vectors_of_the_method(distance, value):
    assert single_query_sensitivity(distance) == pytest.approx(value, abs=5e-7)


def test_mean_of_its_square_over_the_disc():
    mean, _ = quad(lambda s: float(single_query_sensitivity(s)) ** 2 * 2 * s, 0, 1)
    assert mean == pytest.approx(0.463388, abs=5e-7)


def test_it_agrees_with_fifty_digits():
    distances = np.concatenate([np.linspace(0, 4, 41), [1e-9, 1 - 1e-12, 1 + 1e-12]])
    exact = np.array([float(sqs(s)) for s in distances])
    np.testing.assert_allclose(single_query_sensitivity(distances), exact, rtol=1e-12, atol=1e-12)


def test_it_keeps_the_shape_it_is_given():
    assert single_query_sensitivity(np.zeros((3, 2, 1))).shape == (3, 2, 1)
    assert single_query_sensitivity(0.5).shape == ()


def test_points_on_the_rim_are_outside_although_a_fused_product_may_put_them_inside():
    points = np.array([[0.28, 0.96], [0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])
    assert Fraction(0.28) ** 2 + Fraction(0.96) ** 2 < 1
    assert not inside(points).any()


def test_inside_is_the_plain_comparison_and_not_one_of_norms():
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 20_000)
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    plain = [x * x + y * y < 1.0 for x, y in points.tolist()]
    assert inside(points).tolist() == plain
    assert plain != [math.hypot(x, y) < 1.0 for x, y in points.tolist()]


@given(unit, unit)
def test_inside_the_disc_it_lies_between_one_half_and_its_value_at_the_centre(x, y):
    if x * x + y * y < 1.0:
        assert 0.5 < single_query_sensitivity(np.sqrt(x * x + y * y)) <= 0.9214


def test_the_last_point_before_the_rim_still_counts_more_than_a_quarter_of_the_square():
    rim = np.array([[np.nextafter(1.0, 0.0), 0.0], [0.0, -np.nextafter(1.0, 0.0)]])
    assert inside(rim).all()
    assert all(query_area(x, y, 1.0) > 0.25 for x, y in rim.tolist())


@given(unit, unit, st.floats(1e-6, 10))
def test_an_area_is_the_square_of_radius_times_sensitivity(x, y, radius):
    assume(x * x + y * y < 1.0)  # elsewhere nothing is ever recorded
    want = float((radius * sqs(float(np.hypot(x, y)))) ** 2)
    assert query_area(x, y, radius) == pytest.approx(want, rel=2e-12)
    assert query_area(x, y, radius) == pytest.approx(
        (radius * single_query_sensitivity(np.hypot(x, y))) ** 2, rel=2e-12
    )
