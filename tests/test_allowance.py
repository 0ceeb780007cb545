"""Amounts per period: what is read, what is refused, and windows as a calendar has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.allowance import PERIODS, read_allowance, read_amount
from queen.errors import LimitsError
from queen.ledger import Budget
from queen.options import Limits
from tests.reference.windows import window

times = st.integers(0, 2**33)


@given(amount=st.integers(0, 2**53), period=st.sampled_from(sorted(PERIODS)), now=times)
def test_windows_are_those_of_the_calendar_and_renew_where_the_next_one_begins(amount, period, now):
    allowance = Limits(extra_answers=f"{amount}/{period}").extra_allowance
    start, renews = allowance.start(now), allowance.renews(now)
    assert (allowance.amount, start) == (amount, window(period, now))
    assert start <= now < renews == start + PERIODS[period]
    assert window(period, renews - 1) == start
    assert window(period, renews) == renews


@given(amount=st.floats(0, 1e300), period=st.sampled_from(sorted(PERIODS)))
def test_texts_come_back_as_they_were_and_mean_the_same_to_the_last_bit(amount, period):
    limits = Limits(threshold=f"{amount!r}/{period}")
    again = Limits(threshold=limits.threshold)
    assert (again, again.threshold) == (limits, limits.threshold)
    assert limits.class_allowance.amount == amount
    assert Budget(threshold=limits.threshold).over(Limits()).threshold == limits.threshold


def test_amounts_are_said_in_their_shortest_form():
    assert Limits(extra_answers=" 2_000 / day ").extra_answers == "2000/day"
    assert Limits(threshold="0.20/week").threshold == Limits(threshold=".2/week").threshold == "0.2/week"
    assert Limits(threshold="1/hour").threshold == "1/hour"
    assert read_allowance("2000/day").per == " per day"


@given(value=st.floats(0, 1e300) | st.integers(0, 2**53), now=times)
def test_a_plain_number_is_for_life(value, now):
    allowance = Limits(threshold=value).class_allowance
    assert (allowance.amount, allowance.period, allowance.start(now), allowance.renews(now)) == (
        value,
        None,
        None,
        None,
    )
    assert allowance.per == ""


@pytest.mark.parametrize(
    "wrong", ["2000", "2000/", "/day", "day", "2000/fortnight", "2000/Day", "-1/day", "1.5/day", "2000.0/day",
              "nan/day", "inf/day", "2000/day/day", f"{2**53 + 1}/day", "", "1e3/day", "٢/jour"],
)  # fmt: skip
def test_bad_extra_answers_are_refused_with_a_right_example(wrong):
    with pytest.raises(LimitsError, match='such as "2000/day"; got'):
        Limits(extra_answers=wrong)
    with pytest.raises(LimitsError, match='such as "2000/day"; got'):
        Budget(extra_answers=wrong)


@pytest.mark.parametrize("wrong", ["0.2", "x/week", "-0.1/week", "nan/week", "inf/week", "0.2/weeks", "0.2 per week"])
def test_bad_thresholds_are_refused_with_a_right_example(wrong):
    with pytest.raises(LimitsError, match=r'such as "0\.2/week"; got'):
        Limits(threshold=wrong)


def test_what_a_person_types_is_a_number_where_it_is_one():
    assert [read_amount(text) for text in ("2000", "0.2", "2000/day", "many")] == [2000, 0.2, "2000/day", "many"]
