"""When every ledger must accuse a client, and what that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reference.watch import Rules
from tests.support.queries import (
    FOREIGN,
    OUTSIDE,
    PLENTY,
    USUAL,
    flags,
    judge,
    outcomes,
    picture,
    pictures,
    standings,
    wealth_of,
)


def test_wealth_accuses_when_it_reaches_the_bar_and_not_before(ledger):
    bet = (*FOREIGN, (3, 2, False))
    reached = wealth_of(bet, bet)
    for client, bar in (("a", reached), ("b", reached * (1 + 1e-12))):
        queries = pictures(2, client=client, bet=bet)
        assert judge(ledger, Rules(PLENTY, 2, bar), queries).alarmed.tolist() == [False, client == "a"]
    assert ledger.standing("a").wealth == reached


@pytest.mark.parametrize("point", [OUTSIDE, (0.0, 0.0)], ids=["outside", "inside"])
def test_the_query_that_raises_the_alarm_is_alarmed_and_neither_recorded_nor_charged(ledger, point):
    assert flags(judge(ledger, Rules(PLENTY, bar=1.0), picture(0, point, bet=FOREIGN))) == [
        ("A" if point == OUTSIDE else "C", False, True, False)
    ]
    standing = ledger.standing("a")
    assert (standing.alarmed, standing.extra_answers, standing.coverage) == (True, 0, {})
    assert ledger.records("a") == {}


def test_later_queries_of_an_accused_client_change_nothing_but_their_count(ledger):
    rules = Rules(PLENTY, bar=1.0)
    judge(ledger, rules, [picture(0, (0.0, 0.0)), picture(1, bet=FOREIGN)])
    before, records = ledger.standing("a"), ledger.records("a")[0].tolist()
    later = [picture(0, (0.0, 0.0)), picture(2, (0.5, 0.0), bet=FOREIGN), picture(3, bet=FOREIGN), picture(1)]
    assert flags(judge(ledger, rules, later)) == [(letter, False, True, False) for letter in "DCAA"]
    assert ledger.standing("a") == replace(before, queries=6, after_alarm=5)
    assert ledger.records("a")[0].tolist() == records
    assert len(ledger.events()) == 1
    ledger.pardon("a", "op")
    judge(ledger, Rules(PLENTY, bar=1e9), picture(2, (0.5, 0.0), bet=FOREIGN))
    assert ledger.standing("a").wealth == wealth_of(FOREIGN)  # it was not remembered while accused


def test_an_exact_repeat_of_what_was_answered_before_the_alarm_is_answered_again(ledger):
    rules = Rules(PLENTY, bar=1.0)
    judge(ledger, rules, [picture(0, (0.0, 0.0)), picture(1), picture(2, bet=FOREIGN)])
    before = ledger.standing("a")
    sent = [picture(1), picture(0, (0.0, 0.0)), picture(1, aside=0.25), picture(2), picture(3), picture(1)]
    judgement = judge(ledger, rules, sent)
    assert judgement.alarmed.all()  # what it is answered does not free it
    assert judgement.repeated.tolist() == [True, True, False, False, False, True]
    assert not judgement.cut_off.any()
    assert not judge(ledger, rules, [picture(2), picture(3)]).repeated.any()  # what was denied never becomes a repeat
    assert ledger.standing("a") == replace(before, queries=11, after_alarm=9)


def test_the_first_queries_after_an_alarm_are_counted_and_the_rest_cut_off(ledger):
    rules = Rules(PLENTY, bar=1.0, after_alarm=3)
    judge(ledger, rules, picture(0))
    sent = [picture(1, bet=FOREIGN), picture(0), picture(2), picture(3), picture(0)]
    assert outcomes(judge(ledger, rules, sent)) == [
        ("A", False, True, False, False, False),
        ("A", False, True, False, True, False),
        ("A", False, True, False, False, False),
        ("A", False, True, False, False, True),
        ("A", False, True, False, False, True),  # nor is an old answer given again
    ]
    assert ledger.standing("a").after_alarm == 5
    again = judge(ledger, replace(rules, after_alarm=7), pictures(3))  # the cap is the guard's, the count the ledger's
    assert (again.repeated.tolist(), again.cut_off.tolist()) == ([True, False, False], [False, False, True])


def test_who_may_ask_nothing_after_the_alarm_is_cut_off_by_it(ledger):
    judgement = judge(ledger, Rules(PLENTY, bar=1.0, after_alarm=0), [picture(0), picture(1, bet=FOREIGN), picture(0)])
    assert judgement.cut_off.tolist() == [False, True, True]
    assert not judgement.repeated.any()


def test_an_alarm_without_consequences_neither_counts_nor_cuts_off(ledger):
    rules = Rules(PLENTY, bar=1.0, enforce=False, after_alarm=0)
    judgement = judge(ledger, rules, [*pictures(3, bet=FOREIGN), picture(0)])
    assert judgement.alarmed.all()
    assert not (judgement.repeated | judgement.cut_off).any()
    assert ledger.standing("a").after_alarm == 0
    enforced = judge(ledger, replace(rules, enforce=True, after_alarm=9), [picture(2), picture(5)])
    assert enforced.repeated.tolist() == [True, False]  # what was answered although it stood accused
    assert ledger.standing("a").after_alarm == 2


def test_a_repeat_is_judged_under_whatever_coverage_and_budget_are_left(ledger):
    rules = Rules(replace(PLENTY, extra_answers=1), bar=1.0)
    judge(ledger, rules, [picture(0), picture(1), picture(2, bet=FOREIGN)])  # the second is refused: nothing is left
    judgement = judge(ledger, rules, pictures(2))
    assert judgement.repeated.tolist() == [True, False]
    assert not judgement.spent.any()


def test_the_batch_in_which_the_alarm_is_raised_may_be_cut_anywhere(make_ledger):
    rules = Rules(PLENTY, bar=1.0, after_alarm=4)
    sent = [picture(0), picture(1), picture(2, bet=FOREIGN), picture(1), picture(3), picture(0), picture(1), picture(0)]
    results = []
    for at in range(1, len(sent)):
        with make_ledger() as ledger:
            rows = outcomes(judge(ledger, rules, sent[:at])) + outcomes(judge(ledger, rules, sent[at:]))
            results.append((rows, standings(ledger)))
    assert all(result == results[0] for result in results)
    assert [row[4:] for row in results[0][0]] == [
        *[(False, False)] * 3, (True, False), (False, False), (True, False), (False, True), (False, True)
    ]  # fmt: skip


def test_an_alarm_without_consequences_is_reported_and_everything_goes_on(ledger):
    rules = Rules(replace(PLENTY, extra_answers=2), bar=1.0, enforce=False)
    stream = [picture(0), picture(1, bet=FOREIGN), picture(2, bet=FOREIGN), picture(3, (0.0, 0.0)), picture(0)]
    assert flags(judge(ledger, rules, stream)) == [
        ("A", False, False, False),
        ("A", False, True, False),
        ("A", True, True, False),
        ("C", False, True, False),
        ("A", False, True, False),
    ]
    standing = ledger.standing("a")
    assert (standing.alarmed, standing.extra_answers, list(standing.coverage)) == (True, 2, [0])
    assert standing.wealth == wealth_of(FOREIGN)
    assert [event.what for event in ledger.events()] == ["alarm", "budget spent"]


def test_an_alarm_accuses_one_client_alone(ledger):
    rules = Rules(PLENTY, bar=1.0)
    stream = [picture(0, client="b"), picture(1, bet=FOREIGN), picture(2, client="b"), picture(3)]
    assert judge(ledger, rules, stream).alarmed.tolist() == [False, True, False, True]
    assert not ledger.standing("b").alarmed


def test_an_alarm_is_an_event_that_says_who_and_how_it_stood(ledger):
    told = judge(ledger, Rules(PLENTY, bar=1.0), [picture(0, (0.0, 0.0)), picture(1, bet=FOREIGN), picture(2)])
    (event,) = ledger.events()
    (notice,) = told.notices
    standing, client = notice.standing, notice.client
    assert (standing.name, standing.group, standing.alarmed, client) == ("a", False, True, "a")
    assert (standing.wealth, standing.queries, standing.coverage) == (event.wealth, event.queries, event.coverage)
    assert (event.id, event.what, event.name, event.group, event.client) == (1, "alarm", "a", False, "a")
    assert (event.wealth, event.queries, event.coverage) == (wealth_of(FOREIGN), 2, ledger.coverage("a"))
    assert (event.actor, event.acknowledged) == ("", None)
    assert event.at > 1.7e9


def test_the_highest_wealth_stands_first(ledger):
    bets = {"low": USUAL, "high": FOREIGN, "middle": ((3, 3, False),), "none": ()}
    stream = [picture(0, client=name, bet=bet) for name, bet in (*bets.items(), ("also high", FOREIGN))]
    judge(ledger, Rules(PLENTY, bar=1e9), stream)
    assert [s.name for s in ledger.standings()] == ["also high", "high", "middle", "low", "none"]
    assert list(ledger.clients()) == sorted([*bets, "also high"])


def test_standings_can_be_read_one_after_the_other_while_judging_goes_on(ledger):
    names = [f"c{i}" for i in range(30)]
    judge(ledger, Rules(PLENTY, bar=1e9), [picture(0, client=name) for name in names])
    ledger.pardon("nobody", "boss")  # who is not on record
    expected = ledger.standings()
    reading = ledger.each_standing()
    found = [next(reading)]
    judge(ledger, Rules(PLENTY, bar=1e9), [picture(1, client="meanwhile")])
    found += [standing for standing in reading if standing.name != "meanwhile"]
    assert sorted(found, key=lambda s: s.name) == sorted(expected, key=lambda s: s.name)
    assert [s.name for s in ledger.standings() if s.name == "meanwhile"] == ["meanwhile"]
