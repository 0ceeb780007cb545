"""Reading between the points of a curve."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.errors import OptionError
from queen.price.curve import Curve, PriceRow, read_curve
from tests.support.prices import curve_of

SIZES = (30, 100, 300, 1000, 3000)
shares = st.floats(0, 1)


@st.composite
def curves(draw) -> Curve:
    """Two kinds of images, direct and label-only, each measured up to a size of its own, with any figures."""
    rows = []
    for images in ("held-out", "training"):
        for label_only in (False, True):
            for size in SIZES[: draw(st.integers(1, len(SIZES)))]:
                low, agreement, high = sorted(draw(st.tuples(shares, shares, shares)))
                rows.append((size, images, label_only, low, agreement, high))
    return curve_of(rows)


@given(curves(), st.integers(1, 10_000), st.integers(1, 10_000))
def test_more_answers_never_make_a_worse_copy(curve, one, other):
    for end in ("low", "agreement", "high", "lucky"):
        assert curve.agreement_at(min(one, other), end) <= curve.agreement_at(max(one, other), end)
    ends = [curve.agreement_at(one, end) for end in ("low", "agreement", "high", "lucky")]
    assert ends == sorted(ends)
    assert ends[-1] <= 1


@given(curves())
def test_no_measured_point_lies_above_the_curve_and_each_of_its_corners_is_measured(curve):
    for row in curve.rows:
        assert curve.agreement_at(row.answers, "high") >= row.high - 1e-12
    figures = [row.high for row in curve.rows]
    assert any(abs(curve.agreement_at(curve.largest, "high") - figure) < 1e-12 for figure in figures)


@given(curves(), shares)
def test_the_answers_for_a_copy_are_the_most_that_stay_below_it(curve, wanted):
    answers = curve.answers_for(wanted)
    if answers == 0:
        assert curve.agreement_at(curve.smallest, "lucky") >= wanted
        return
    assert curve.smallest <= answers <= curve.largest
    assert curve.agreement_at(answers, "lucky") < wanted
    assert answers == curve.largest or curve.agreement_at(answers + 1, "lucky") >= wanted


def test_between_two_points_it_is_a_straight_line_over_the_logarithm():
    curve = curve_of([(100, "held-out", False, 0.2, 0.3, 0.4), (10_000, "held-out", False, 0.6, 0.7, 0.8)])
    assert curve.agreement_at(1000) == pytest.approx(0.5)
    assert curve.agreement_at(1000, "high") == pytest.approx(0.6)
    assert curve.agreement_at(1000, "lucky") == pytest.approx(0.8)  # 0.6 at the first point, 1 at the second
    assert curve.answers_for(0.6, "high") in (999, 1000)
    assert curve.answers_for(0.8) in (999, 1000)


def test_beyond_what_was_measured_the_last_point_stands_and_below_it_the_first():
    curve = curve_of([(30, "held-out", False, 0.2, 0.3, 0.4), (100, "held-out", False, 0.6, 0.7, 0.8)])
    assert curve.agreement_at(1) == curve.agreement_at(30) == 0.3
    assert curve.agreement_at(10**9) == 0.7
    assert curve.answers_for(0.9, "high") == 100
    assert curve.answers_for(0.6) == 0


def test_a_lucky_thief_is_as_far_above_the_highest_seed_as_that_is_above_the_lowest():
    [wide, narrow, easy] = curve_of(
        [
            (30, "held-out", False, 0.2, 0.3, 0.5),
            (100, "held-out", False, 0.4, 0.4, 0.4),
            (300, "x", True, 0.6, 0.8, 0.9),
        ]
    ).rows
    assert [row.lucky for row in (wide, narrow, easy)] == pytest.approx([0.8, 0.4, 1.0])


@given(curves())
def test_a_curve_comes_back_from_json(curve):
    assert read_curve(json.loads(json.dumps(curve.as_json()))) == curve


def test_a_price_of_before_students_had_a_number_of_passes_had_twelve():
    curve = replace(curve_of([(30, "held-out", True, 0.2, 0.3, 0.4)]), epochs=60)
    stored = curve.as_json()
    assert stored["epochs"] == read_curve(stored).epochs == 60
    del stored["epochs"]
    assert read_curve(stored) == replace(curve, epochs=12)


def test_the_json_has_the_names_that_scripts_rely_on():
    stored = curve_of([(30, "held-out", True, 0.2, 0.3, 0.4)]).as_json()
    names = {"answers", "images", "agreement", "accuracy", "label_only", "low", "high"}
    assert names <= set(stored["curve"][0])
    assert set(stored["curve"][0]) == set(PriceRow.__dataclass_fields__)


@pytest.mark.parametrize(
    "broken", [{}, {"curve": [{"answers": 3}]}, curve_of([(30, "x", True, 0, 0, 0)]).as_json() | {"curve": []}]
)
def test_what_is_no_curve_is_refused(broken):
    with pytest.raises(OptionError, match="price"):
        read_curve(broken)
