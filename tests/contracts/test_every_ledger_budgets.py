"""What every ledger notes of budgets that come to an end, whose they are, and that refused rows cost nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from queen.ledger import Ledger
from queen.ledger.rows import make_rows
from queen.ledger.words import Budget, Denial
from queen.options import Group, Limits
from tests.reference.watch import Rules
from tests.support.queries import NAMES, PLENTY, judge, picture, pictures

TEN = Rules(replace(PLENTY, extra_answers=10))
SPREAD = [(-0.75, 0.0), (-0.25, 0.0), (0.25, 0.0), (0.75, 0.0), (0.0, 0.6), (0.0, -0.6)]  # more than a radius apart


def noted(ledger: Ledger) -> list[tuple[str, str, bool]]:
    return [(event.what, event.name, event.group) for event in ledger.events() if not event.actor]


def test_extra_answers_are_low_at_four_fifths_and_spent_with_the_last_one(ledger):
    notices = [judge(ledger, TEN, picture(i)).notices for i in range(13)]
    assert {i: [notice.what for notice in of] for i, of in enumerate(notices) if of} == {
        7: ["budget low"], 9: ["budget spent"]
    }  # fmt: skip
    low, spent = ledger.events()
    assert [(e.what, e.name, e.group, e.client, e.queries, e.actor) for e in (low, spent)] == [
        ("budget low", "a", False, "a", 8, ""),
        ("budget spent", "a", False, "a", 10, ""),
    ]
    assert (low.wealth, low.coverage) == (0.0, {})
    ((notice,), _) = [of for of in notices if of]
    assert (notice.standing.extra_answers, notice.client) == (8, "a")


@pytest.mark.parametrize("size", [1, 3, 13])
def test_it_is_noted_alike_in_whatever_batches(ledger, size):
    stream = pictures(13)
    for i in range(0, 13, size):
        judge(ledger, TEN, stream[i : i + size])
    assert [(e.what, e.queries) for e in ledger.events()] == [("budget low", 8), ("budget spent", 10)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, []), (1, ["budget spent"]), (4, ["budget spent"]), (5, ["budget low", "budget spent"])],
)
def test_a_small_budget_is_spent_at_once_and_none_at_all_is_no_news(ledger, limit, expected):
    judge(ledger, Rules(replace(PLENTY, extra_answers=limit)), pictures(6))
    assert [event.what for event in ledger.events()] == expected


def test_the_first_class_that_comes_to_its_end_is_noted_and_no_other(ledger):
    rules = Rules(Limits(radius=0.25, threshold=0.15, extra_answers=1000))
    for label in (1, 0):
        for i, point in enumerate(SPREAD):
            judge(ledger, rules, picture(10 * label + i, point, label=label))
    low, spent = ledger.events()
    assert (low.what, spent.what) == ("class low", "class spent")
    assert 0.8 * 0.15 <= low.coverage[1] <= 0.15 < spent.coverage[1]
    assert all(cqs > 0.15 for cqs in ledger.coverage("a").values())
    assert len(ledger.coverage("a")) == 2


def test_a_record_that_spends_a_class_at_once_is_one_notice(ledger):
    judge(ledger, Rules(Limits(radius=0.5, threshold=0.0)), picture(0, (0.0, 0.0)))
    assert noted(ledger) == [("class spent", "a", False)]


def test_a_group_has_budgets_and_notices_of_its_own(ledger):
    shared = {"team": Group(limits=replace(PLENTY, extra_answers=5))}
    rules = Rules(PLENTY, groups=dict.fromkeys(NAMES, shared))
    judgement = judge(ledger, rules, [picture(i, client=NAMES[i % 3]) for i in range(7)])
    assert noted(ledger) == [("budget low", "team", True), ("budget spent", "team", True)]
    assert [event.client for event in ledger.events()] == ["a", "b"]
    assert judgement.denials == {5: Denial("team", True, 5, 5), 6: Denial("team", True, 5, 5)}


def test_a_new_budget_makes_its_end_news_again(ledger):
    judge(ledger, TEN, pictures(11))
    ledger.set_budget("a", Budget(extra_answers=20), "boss")
    judge(ledger, TEN, pictures(21))
    assert [event.what for event in ledger.events()] == [
        "budget low", "budget spent", "budget", "budget low", "budget spent"
    ]  # fmt: skip
    assert [event.queries for event in ledger.events()] == [8, 10, 11, 27, 31]


def test_a_trusted_client_never_runs_out_and_is_no_news(ledger):
    ledger.allow("a", "boss")
    assert not judge(ledger, TEN, pictures(12)).denials
    assert noted(ledger) == []


def test_under_the_papers_policies_nothing_is_refused_and_nothing_noted(ledger):
    points = np.array([*SPREAD, *[[2.0, 0.0]] * 6])
    rows = make_rows(("a",), None, [0] * 12, points, Limits(radius=0.25, threshold=0.0, extra_answers=1))
    judgement = ledger.judge_rows(rows)
    assert (judgement.notices, judgement.denials, ledger.events()) == ((), {}, [])


def test_a_denial_says_whose_budget_it_was_and_never_which_class(ledger):
    rules = Rules(Limits(radius=0.5, threshold=0.0, extra_answers=1))
    stream = [picture(0, (0.0, 0.0)), picture(1), picture(2, label=1), picture(3, label=1)]
    assert judge(ledger, rules, stream).denials == {1: Denial("a", False, 0, 1), 3: Denial("a", False, 1, 1)}


def test_events_can_be_read_from_where_one_has_stopped(ledger):
    judge(ledger, TEN, pictures(11))
    ledger.pardon("a", "boss")
    everything = ledger.events()
    assert [event.id for event in everything] == [1, 2, 3]
    for after in range(5):
        assert ledger.events(after=after) == everything[after:]
        for newest in range(5):
            left = everything[after:]
            assert ledger.events(after=after, newest=newest) == left[max(0, len(left) - newest) :]


def test_a_row_that_is_refused_costs_nothing_and_the_others_are_free_from_then_on(ledger):
    group = Group(limits=PLENTY)
    rules = replace(TEN, groups={"a": {"team": group}})
    stream = [*pictures(10), picture(50, (0.0, 0.0)), picture(10), picture(11)]
    assert judge(ledger, rules, stream).spent.tolist() == [False] * 11 + [True] * 2
    whom = [("a", False), ("team", True)]
    before = [ledger.standing(name, group=group) for name, group in whom]
    assert [standing.extra_answers for standing in before] == [10, 10]
    assert [standing.queries for standing in before] == [13, 11]
    assert judge(ledger, rules, stream[:11]).spent.sum() == 0  # what was answered, sent again
    assert judge(ledger, rules, stream[11:]).spent.all()  # and what was refused
    for (name, is_group), stood in zip(whom, before, strict=True):
        now = ledger.standing(name, group=is_group)
        assert now == replace(stood, queries=now.queries)


@pytest.mark.parametrize("point", [(2.0, 0.0), (0.0, 0.0)], ids=["extra answer", "coverage"])
def test_what_a_group_refuses_its_member_has_paid_in_advance(ledger, point):
    """Its own account is asked first, and charged once, however often the row is sent; from then on it is free."""
    rules = Rules(PLENTY, groups={"a": {"team": Group(limits=Limits(radius=0.25, threshold=0.2, extra_answers=0))}})
    first = picture(0, (0.1, 0.1))  # which covers the place for the group, but for nobody else
    judge(ledger, replace(rules, groups={"b": rules.groups["a"]}), replace(first, client="b"))
    refused = picture(1, point)
    assert judge(ledger, rules, [refused] * 3).spent.all()
    own, group = ledger.standing("a"), ledger.standing("team", group=True)
    assert (own.extra_answers, len(ledger.records("a"))) == ((1, 0) if point == (2.0, 0.0) else (0, 1))
    assert group.extra_answers == 0
    richer = replace(rules, groups={"a": {"team": Group(limits=PLENTY)}})
    assert not judge(ledger, richer, refused).spent.any()
    assert ledger.standing("a") == replace(own, queries=4)  # the answer came, and cost nothing more
    assert ledger.standing("team", group=True).extra_answers == 1
