"""From a bound on copies to limits, and the refusal to promise what a budget cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.bundle.report import budget
from queen.errors import LimitsError
from queen.ledger import MemoryLedger
from queen.options import Sentinel
from queen.price.limits import check_policy_bounds_copies, limits_for, most_answers
from tests.support.prices import curve_of

HARD = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2), (3000, "held-out", False, 0.6, 0.7, 0.8)])
EASY = curve_of([(30, "held-out", False, 0.55, 0.56, 0.58), (100, "held-out", False, 0.8, 0.85, 0.88)])


@given(st.floats(0.5, 1), st.integers(2, 40))
def test_the_certified_answers_are_all_of_those_that_the_curve_allows(max_copy, classes):
    answers = most_answers(HARD, max_copy, classes)
    certified = budget(limits_for(answers, classes), {"classes": classes, "mean_square_sensitivity": 0.46}, None)
    assert certified["honest_answers"] == answers
    assert HARD.agreement_at(certified["honest_answers"], "lucky") < max_copy


@given(st.integers(0, 2**32), st.integers(11, 200))
def test_any_client_gets_all_of_its_answers_and_no_more_whatever_it_asks(seed, answers):
    """By the ledger itself: points anywhere, classes as unevenly as they come."""
    rng, classes, rows = np.random.default_rng(seed), 10, 400
    limits = limits_for(answers, classes)
    labels = np.minimum(rng.geometric(0.4, rows) - 1, classes - 1)
    judgement = MemoryLedger().judge("client", labels, rng.normal(0, 0.7, (rows, 2)), limits)
    letters = np.array(list(judgement.letters))
    assert not judgement.spent.any()
    assert (letters == "C").sum() <= classes  # one record a class, and every other answer is counted one by one
    assert (letters == "B").sum() == 0
    assert limits.extra_answers == answers - classes


def test_a_task_that_is_too_easy_is_refused_in_numbers():
    with pytest.raises(LimitsError, match="too easy") as refusal:
        most_answers(EASY, 0.6, 10)
    assert "30 honest answers may already make one that agrees with this model on 61.0%" in str(refusal.value)
    assert "choose max_copy above 0.61" in str(refusal.value)
    assert most_answers(EASY, 0.62, 10) >= 30


def test_fewer_than_two_answers_a_class_are_of_no_use():
    with pytest.raises(LimitsError, match="60 honest answers may already"):
        most_answers(HARD, 0.38, 30)
    assert most_answers(HARD, 0.38, 10) < 60


@pytest.mark.parametrize("wrong", [0, -1, 1.2, True, "0.6", float("nan")])
def test_what_is_no_share_is_refused(wrong):
    with pytest.raises(LimitsError, match="share above 0 and at most 1"):
        most_answers(HARD, wrong, 10)


def test_too_few_answers_for_the_classes_are_refused():
    with pytest.raises(LimitsError, match="more than 10 answers"):
        limits_for(10, 10)


@pytest.mark.parametrize(
    "settings",
    [
        {"on_alarm": "label-only"},
        {"on_alarm": "observe"},
        {"on_alarm": "reverse"},
        {"on_spent": "reverse"},
        {"on_spent": "label-only"},
    ],
)
def test_a_sentinel_that_goes_on_telling_labels_bounds_no_copy(settings):
    with pytest.raises(LimitsError, match="nothing, got on_alarm="):
        check_policy_bounds_copies("sentinel", Sentinel(**settings), observe=False)
    check_policy_bounds_copies("sentinel", Sentinel(on_alarm="decoy"), observe=False)


@pytest.mark.parametrize(("policy", "observe"), [("paper", False), ("strict", False), ("sentinel", True)])
def test_only_the_sentinel_bounds_copies(policy, observe):
    with pytest.raises(LimitsError, match="needs policy 'sentinel'"):
        check_policy_bounds_copies(policy, Sentinel(), observe=observe)
