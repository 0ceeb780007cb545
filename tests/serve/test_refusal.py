"""What refused clients are told: the budget, and nothing about what they asked or about alarms that are kept quiet."""

from __future__ import annotations

import numpy as np
import pytest

from queen.ledger import Judgement
from queen.ledger.words import Denial
from queen.refusal import MAX_LISTED, explain
from queen.serve.refusal import refuse

OWN, SHARED = Denial("alice", group=False, used=2000, limit=2000), Denial("tenant:7", group=True, used=31, limit=40)


def error_for(denials: dict[int, Denial], refused: list[bool], *, first: int = 0, openly: bool = True):
    none = np.zeros(first + len(refused), np.bool_)
    judgement = Judgement("A" * len(none), none, none, none, denials=denials)
    return refuse(explain(judgement, first, refused, openly=openly), refused)


def test_it_names_the_budget_and_no_time_to_come_back_where_nothing_renews():
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


NOON, MIDNIGHT = 1_795_003_200, 1_795_046_400  # 2026-11-18 12:00 and 2026-11-19 00:00 UTC
DAILY = Denial("alice", group=False, used=2000, limit=2000, renews=MIDNIGHT, at=NOON)
WEEKLY = Denial("tenant:7", group=True, used=31, limit=40, renews=MIDNIGHT + 4 * 86400, at=NOON + 5)
PARTLY = Denial("alice", group=False, used=2000, limit=2000, renews=None, at=NOON)


def test_where_all_that_is_spent_renews_it_says_when_and_the_header_how_long_that_is():
    error = error_for({0: DAILY}, [True])
    assert error.retry_after == 43_200
    assert error.message.endswith("it renews at 2026-11-19 00:00 UTC")


def test_the_latest_of_the_renewals_counts_and_one_that_never_comes_takes_the_header_away():
    both = error_for({0: DAILY, 1: WEEKLY}, [True, True])
    assert both.retry_after == 4 * 86400 + 43_200 - 5
    assert "2,000 of 2,000" in both.message
    assert both.message.endswith("it renews at 2026-11-23 00:00 UTC")
    for never, outlook in ((OWN, "renews"), (PARTLY, "not all of it renews by itself")):
        error = error_for({0: DAILY, 1: never}, [True, True])
        assert error.retry_after is None
        assert outlook in error.message


def test_a_group_tells_when_it_renews_but_no_numbers():
    error = error_for({0: WEEKLY}, [True])
    assert "it renews at 2026-11-23 00:00 UTC" in error.message
    assert "31" not in error.message
    assert "40" not in error.message


@pytest.mark.parametrize("openly", [True, False])
def test_an_alarm_that_is_not_told_is_not_read_from_the_header_either(openly):
    """A request with refused rows of both kinds looks like one whose budget alone is spent."""
    both, budget = error_for({0: DAILY}, [True, True], openly=openly), error_for({0: DAILY}, [True], openly=openly)
    assert (both.message, both.retry_after) == (budget.message, budget.retry_after)


def test_the_parts_of_a_request_are_refused_as_it_would_be_as_a_whole():
    def part(denial: Denial | None):
        none = np.zeros(1, np.bool_)
        return explain(Judgement("A", none, none, none, denials={0: denial} if denial else {}), 0, [True], openly=True)

    for parts in ([DAILY, WEEKLY], [WEEKLY, DAILY], [DAILY, OWN], [DAILY, None], [PARTLY, DAILY], [None, None]):
        joined = part(parts[0]).followed_by(part(parts[1]))
        error = error_for({i: one for i, one in enumerate(parts) if one}, [True, True])
        assert (joined.message, joined.wait) == (error.message, error.retry_after)


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
