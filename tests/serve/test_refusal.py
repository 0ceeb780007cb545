"""What refused clients are told: the budget, and nothing about what they asked or about alarms that are kept quiet."""

from __future__ import annotations

import numpy as np
import pytest

from queen.ledger import Judgement
from queen.ledger.words import Denial
from queen.serve.refusal import MAX_LISTED, explain, refuse

OWN, SHARED = Denial("alice", group=False, used=2000, limit=2000), Denial("tenant:7", group=True, used=31, limit=40)


def error_for(denials: dict[int, Denial], refused: list[bool], *, first: int = 0, openly: bool = True):
    none = np.zeros(first + len(refused), np.bool_)
    judgement = Judgement("A" * len(none), none, none, none, denials=denials)
    return refuse(explain(judgement, first, refused, openly=openly), refused)


def test_it_names_the_budget_and_never_a_time_to_come_back():
    error = error_for({5: OWN, 7: OWN}, [True, False, True], first=5)
    assert (error.status, error.retry_after, error.rows) == (429, None, (0, 2))
    assert "the budget of this client is spent (2,000 of 2,000 extra answers are used)" in error.message
    assert "does not renew by itself: ask the operator" in error.message
    assert "sending them again costs nothing" in error.message
    assert "alice" not in error.message


def test_where_extra_answers_are_left_a_class_is_spent_but_it_is_not_said_which():
    error = error_for({0: Denial("alice", group=False, used=1340, limit=2000)}, [True])
    assert "1,340 of 2,000 extra answers are used, but a class is spent" in error.message
    assert "sending them again" not in error.message  # there are no others


def test_of_a_group_no_numbers_are_error_for():
    error = error_for({0: SHARED}, [True])
    assert "shares with its group 'tenant:7' is spent" in error.message
    assert "31" not in error.message
    assert "40" not in error.message


@pytest.mark.parametrize("openly", [True, False])
def test_an_accusation_is_told_only_where_accused_clients_are_refused_openly(openly):
    error = error_for({}, [False, True], openly=openly)
    assert ("accused" in error.message) == openly
    assert (error.rows, error.retry_after) == ((1,), None)
    assert "ask the operator" in error.message


def test_only_the_first_refused_rows_are_listed():
    assert error_for({0: OWN}, [True] * 500).rows == tuple(range(MAX_LISTED))
