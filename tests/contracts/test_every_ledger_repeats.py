"""What every ledger must remember for the sentinel: which queries came before, exactly or nearly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queen.ledger.words import Budget
from queen.options import Limits
from queen.sentinel.sketch import Memory
from tests.reference.watch import Rules
from tests.support.queries import CLOSE, FOREIGN, OUTSIDE, PLENTY, USUAL, flags, judge, picture, pictures, wealth_of


def test_an_identical_repeat_is_free_even_when_the_budget_is_gone(ledger):
    rules = Rules(replace(PLENTY, extra_answers=1), bar=1e9)
    first, second = picture(0, bet=FOREIGN), picture(1, bet=USUAL)
    assert judge(ledger, rules, [first, second]).spent.tolist() == [False, True]
    before = ledger.standing("a")
    assert judge(ledger, rules, [first] * 3).spent.tolist() == [False] * 3
    assert ledger.standing("a") == replace(before, queries=5)


def test_an_identical_repeat_of_a_recorded_query_is_free(ledger):
    rules = Rules(replace(PLENTY, extra_answers=0))
    assert flags(judge(ledger, rules, [picture(0, (0.0, 0.0))] * 3)) == [
        ("C", False, False, False),
        *[("D", False, False, False)] * 2,
    ]
    assert ledger.standing("a").extra_answers == 0


@pytest.mark.parametrize("point", [OUTSIDE, (0.5, 0.0), (0.0, 0.1)], ids=["outside", "spent", "repeat"])
def test_a_refused_query_sent_again_is_refused_again_and_places_no_second_bet(ledger, point):
    rules = Rules(Limits(radius=0.25, threshold=0.0, extra_answers=0), bar=1e9)
    judge(ledger, rules, picture(0, (0.0, 0.0)))
    assert judge(ledger, rules, picture(1, point, bet=FOREIGN)).spent.tolist() == [True]
    before = ledger.standing("a")
    assert before.wealth == wealth_of(FOREIGN)
    assert judge(ledger, rules, [picture(1, point, bet=FOREIGN)] * 3).spent.tolist() == [True] * 3
    assert ledger.standing("a") == replace(before, queries=5)


def test_a_refused_query_is_charged_when_there_is_budget_again(ledger):
    rules = Rules(replace(PLENTY, extra_answers=0), bar=1e9)
    assert judge(ledger, rules, picture(0, bet=FOREIGN)).spent.all()
    ledger.set_budget("a", Budget(extra_answers=5), "op")
    assert not judge(ledger, rules, [picture(0, bet=FOREIGN)] * 2).spent.any()
    standing = ledger.standing("a")
    assert (standing.extra_answers, standing.wealth) == (1, wealth_of(FOREIGN))


def test_a_near_repeat_places_no_bet_but_is_charged(ledger):
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, picture(0, bet=FOREIGN))
    judge(ledger, rules, [picture(0, bet=FOREIGN, aside=CLOSE), picture(0, bet=FOREIGN, aside=-0.5)])
    standing = ledger.standing("a")
    assert (standing.wealth, standing.extra_answers) == (wealth_of(FOREIGN), 3)
    judge(ledger, Rules(replace(PLENTY, extra_answers=3), bar=1e9), picture(0, bet=FOREIGN, aside=0.25))
    assert ledger.standing("a") == replace(standing, queries=4)


def test_a_query_one_tolerance_away_is_another_one_and_bets(ledger):
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, [picture(0, bet=FOREIGN), picture(0, bet=FOREIGN, aside=1.0)])
    assert ledger.standing("a").wealth == wealth_of(FOREIGN, FOREIGN)


def test_a_query_without_a_bet_leaves_the_wealth_alone_and_is_remembered(ledger):
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, [picture(0, bet=FOREIGN), picture(1), picture(1, bet=FOREIGN, aside=0.5)])
    assert ledger.standing("a").wealth == wealth_of(FOREIGN)


def test_what_one_client_sent_is_new_from_another(ledger):
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, [picture(0, bet=FOREIGN), picture(0, bet=FOREIGN, client="b")])
    one, other = ledger.standing("a"), ledger.standing("b")
    assert one == replace(other, name="a")
    assert (one.wealth, one.extra_answers) == (wealth_of(FOREIGN), 1)


def test_an_answer_that_was_forgotten_is_not_given_again_to_the_accused(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(PLENTY, bar=1.0)
    judge(ledger, rules, [*pictures(3), picture(3, bet=FOREIGN)])
    assert judge(ledger, rules, pictures(4)).repeated.tolist() == [False, True, True, False]
    assert judge(ledger, rules, pictures(4)).repeated.tolist() == [False, True, True, False]  # nothing is pushed out


def test_an_answer_is_given_again_though_its_picture_was_forgotten(ledger, monkeypatch):
    """Refused pictures push out others, but no answers; so an input may even raise the alarm and be answered again."""
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(replace(PLENTY, extra_answers=1), bar=1.0)
    assert judge(ledger, rules, pictures(4)).spent.tolist() == [False, True, True, True]
    judgement = judge(ledger, rules, [picture(0, bet=FOREIGN), picture(0), picture(3)])
    assert judgement.alarmed.all()
    assert judgement.repeated.tolist() == [True, True, False]


def test_what_was_forgotten_must_be_paid_again(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 4)
    rules = Rules(replace(PLENTY, extra_answers=7), bar=1e9)
    judge(ledger, rules, pictures(4))
    assert not judge(ledger, rules, pictures(4)).spent.any()
    assert ledger.standing("a").extra_answers == 4
    judge(ledger, rules, picture(4))  # pushes picture 0 out
    assert not judge(ledger, rules, [picture(4), picture(3), picture(2), picture(1)]).spent.any()
    assert ledger.standing("a").extra_answers == 5
    assert not judge(ledger, rules, [picture(0), picture(1)]).spent.any()  # each pushes the next one out
    assert ledger.standing("a").extra_answers == 7
    assert judge(ledger, rules, [picture(2), picture(1)]).spent.tolist() == [True, False]


def test_refused_queries_push_out_old_ones_and_never_become_free(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(replace(PLENTY, extra_answers=1))
    assert judge(ledger, rules, pictures(4)).spent.tolist() == [False, True, True, True]
    assert judge(ledger, rules, pictures(4)).spent.all()
    assert ledger.standing("a").extra_answers == 1


def test_a_forgotten_query_bets_again(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, [picture(0, bet=FOREIGN), picture(1), picture(0, bet=FOREIGN), picture(2)])
    assert ledger.standing("a").wealth == wealth_of(FOREIGN)
    judge(ledger, rules, picture(0, bet=FOREIGN))
    assert ledger.standing("a").wealth == wealth_of(FOREIGN, FOREIGN)


def test_the_memory_holds_its_capacity_and_no_more(ledger):
    rules = Rules(replace(PLENTY, extra_answers=10**6))
    count = Memory.CAPACITY + 10
    judge(ledger, rules, pictures(count))
    remembered = pictures(Memory.CAPACITY, start=10)
    judge(ledger, rules, remembered)
    assert ledger.standing("a").extra_answers == count
    judge(ledger, rules, pictures(10))
    assert ledger.standing("a").extra_answers == count + 10
