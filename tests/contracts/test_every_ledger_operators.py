"""What operators may do in every ledger, and what it says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from queen.errors import ClientError, LimitsError, OptionError, QueenError
from queen.ledger import Ledger
from queen.ledger.words import Budget
from queen.options import Group, Limits
from tests.reference.watch import Rules
from tests.support.ledgers import BAD_CLIENTS
from tests.support.queries import FOREIGN, PLENTY, events, flags, judge, picture, pictures, standings, wealth_of


def accuse(ledger: Ledger, client: str = "a") -> Rules:
    """A client with a record, an extra answer and an alarm, in a group that has seen the same."""
    rules = Rules(PLENTY, bar=1.0, groups={client: {"team": Group(limits=PLENTY)}})
    judge(ledger, rules, [picture(0, (0.0, 0.0), client=client), picture(1, client=client)])
    judge(ledger, rules, picture(2, client=client, bet=FOREIGN))
    assert ledger.standing(client).alarmed
    return rules


def test_a_pardon_clears_alarm_and_wealth_and_nothing_else(ledger):
    rules = accuse(ledger)
    before, team = ledger.standing("a"), ledger.standing("team", group=True)
    records = ledger.records("a")[0].tolist()
    ledger.pardon("a", "alice")
    assert before.after_alarm == 1
    assert ledger.standing("a") == replace(before, alarmed=False, after_alarm=0, wealth=0.0)
    assert ledger.standing("team", group=True) == team
    assert ledger.records("a")[0].tolist() == records
    assert events(ledger)[-1] == (
        "pardon", "a", False, "", before.wealth, before.queries, before.coverage, "alice"
    )  # fmt: skip
    assert flags(judge(ledger, rules, [picture(1), picture(3)])) == [("A", False, False, False)] * 2
    assert ledger.standing("a").extra_answers == 2  # picture 1 is still free


def test_after_a_pardon_the_evidence_starts_anew(ledger):
    accuse(ledger)
    ledger.pardon("a", "op")
    judge(ledger, Rules(PLENTY, bar=1e9), picture(3, bet=FOREIGN))
    assert ledger.standing("a").wealth == wealth_of(FOREIGN)


def test_the_query_that_accused_is_no_free_answer_after_a_pardon(ledger):
    rules = accuse(ledger)
    ledger.pardon("a", "op")
    assert not judge(ledger, rules, picture(2, bet=FOREIGN)).alarmed.any()
    standing = ledger.standing("a")
    assert (standing.extra_answers, standing.wealth) == (2, 0.0)


def test_a_client_can_be_accused_again_after_a_pardon(ledger):
    rules = accuse(ledger)
    ledger.pardon("a", "op")
    assert judge(ledger, rules, picture(3, bet=FOREIGN)).alarmed.all()
    assert [e.what for e in ledger.events()] == ["alarm", "pardon", "alarm"]


def test_after_a_pardon_and_another_alarm_the_count_begins_anew(ledger):
    rules = replace(accuse(ledger), after_alarm=2)
    assert judge(ledger, rules, [picture(1), picture(1)]).cut_off.tolist() == [False, True]
    ledger.pardon("a", "op")
    judge(ledger, rules, picture(3, bet=FOREIGN))
    assert ledger.standing("a").after_alarm == 1
    judgement = judge(ledger, rules, [picture(1), picture(1)])
    assert (judgement.repeated.tolist(), judgement.cut_off.tolist()) == ([True, False], [False, True])


def test_an_allowed_client_is_neither_counted_nor_cut_off(ledger):
    rules = replace(accuse(ledger), after_alarm=0)
    ledger.allow("a", "op")
    judgement = judge(ledger, rules, [picture(1), picture(5)])
    assert judgement.trusted.all()
    assert not (judgement.repeated | judgement.cut_off).any()
    assert ledger.standing("a").after_alarm == 1
    ledger.allow("a", "op", allowed=False)
    rules = replace(rules, after_alarm=9)
    # Its groups never heard of what it was answered while it was allowed, so that is not answered again.
    assert judge(ledger, rules, [picture(0), picture(5)]).repeated.tolist() == [True, False]


def test_an_event_can_be_acknowledged(ledger):
    accuse(ledger)
    accuse(ledger, "b")
    assert ledger.acknowledgements() == {}
    ledger.acknowledge(2, "alice")
    assert ledger.acknowledgements() == {2: "alice"}
    assert [e.acknowledged for e in ledger.events()] == [None, "alice"]
    ledger.acknowledge(2, "bob")
    ledger.acknowledge(1, "bob")
    assert [e.acknowledged for e in ledger.events()] == ["bob", "bob"]
    assert [e.id for e in ledger.events()] == [1, 2]
    assert ledger.acknowledgements() == {1: "bob", 2: "bob"}


@pytest.mark.parametrize("number", [0, -1, 2, 2**40])
def test_an_unknown_event_cannot_be_acknowledged(ledger, number):
    accuse(ledger)
    with pytest.raises(OptionError, match=f"no event {number}"):
        ledger.acknowledge(number, "alice")
    assert [e.acknowledged for e in ledger.events()] == [None]


def test_an_allowed_client_is_trusted_and_never_spent(ledger):
    rules = Rules(Limits(radius=0.25, threshold=0.0, extra_answers=1))
    ledger.allow("a", "alice")
    stream = [picture(0, (0.0, 0.0)), picture(1, (0.9, 0.0)), picture(2), picture(3), picture(4, (0.0, 0.1))]
    assert flags(judge(ledger, rules, stream)) == [(letter, False, False, True) for letter in "CBAAD"]
    standing = ledger.standing("a")
    assert (standing.allowed, standing.extra_answers) == (True, 3)
    assert len(ledger.records("a")[0]) == 1
    ledger.allow("a", "bob", allowed=False)
    assert flags(judge(ledger, rules, [picture(5), picture(2)])) == [
        ("A", True, False, False),
        ("A", False, False, False),
    ]
    assert [(e.what, e.actor) for e in ledger.events()] == [("allow", "alice"), ("disallow", "bob")]


def test_without_the_sentinel_nobody_is_alarmed_and_the_allow_list_still_counts(ledger):
    accuse(ledger)
    ledger.allow("b", "op")
    for client in ("a", "b"):
        judgement = ledger.judge(client, [0, 0], np.array([[0.5, 0.0], [2.0, 0.0]]), PLENTY)
        assert flags(judgement) == [(letter, False, False, client == "b") for letter in "CA"]
    assert ledger.standing("a").queries == 5  # counted under every policy
    assert ledger.standing("a").extra_answers == 1  # under the sentinel only


def test_an_accused_client_that_is_allowed_is_trusted_again_but_stays_accused(ledger):
    rules = accuse(ledger)
    ledger.allow("a", "alice")
    assert flags(judge(ledger, rules, picture(5))) == [("A", False, True, True)]
    assert ledger.standing("a").extra_answers == 2
    ledger.allow("a", "alice", allowed=False)
    assert flags(judge(ledger, rules, picture(6))) == [("A", False, True, False)]
    assert ledger.standing("a").extra_answers == 2


def test_evidence_against_an_allowed_client_is_kept_but_has_no_consequences(ledger):
    rules = Rules(PLENTY, bar=1.0)
    ledger.allow("a", "op")
    assert flags(judge(ledger, rules, [picture(0, bet=FOREIGN), picture(1)])) == [("A", False, True, True)] * 2
    assert [e.what for e in ledger.events()] == ["allow", "alarm"]
    assert ledger.standing("a").extra_answers == 2


def test_a_client_may_have_a_budget_of_its_own_and_lose_it_again(ledger):
    rules, own = Rules(replace(PLENTY, extra_answers=1)), Budget(extra_answers=2)
    assert judge(ledger, rules, pictures(2)).spent.tolist() == [False, True]
    ledger.set_budget("a", own, "alice")
    assert ledger.standing("a").budget == own
    assert judge(ledger, rules, pictures(3)).spent.tolist() == [False, False, True]
    assert judge(ledger, rules, pictures(2, client="b")).spent.tolist() == [False, True]
    ledger.set_budget("a", None, "bob")
    assert ledger.standing("a").budget is None
    assert judge(ledger, rules, pictures(4)).spent.tolist() == [False, False, True, True]
    orders = [event for event in ledger.events() if event.actor]
    assert [(e.what, e.name, e.actor) for e in orders] == [("budget", "a", "alice"), ("budget", "a", "bob")]


def test_a_budget_of_ones_own_changes_only_what_it_names(ledger):
    rules = Rules(Limits(radius=0.25, threshold=0.0, extra_answers=1))
    inside = [picture(i, (0.3 * i - 0.6, 0.0)) for i in range(4)]
    assert judge(ledger, rules, inside[:2]).letters == "CB"
    ledger.set_budget("a", Budget(threshold=1.0), "op")
    assert judge(ledger, rules, [*inside[1:], *pictures(2, start=9)]).spent.tolist() == [
        False,
        False,
        False,
        False,
        True,
    ]
    ledger.set_budget("a", Budget(extra_answers=2), "op")
    assert judge(ledger, rules, [picture(5, (0.0, 0.9)), *pictures(3, start=9)]).spent.tolist() == [
        True, False, True, True
    ]  # fmt: skip


def test_a_budget_takes_numbers_of_numpy_as_limits_do(ledger):
    ledger.set_budget("a", Budget(threshold=np.float32(0.25), extra_answers=np.int64(1)), "op")
    assert judge(ledger, Rules(PLENTY), pictures(2)).spent.tolist() == [False, True]
    assert ledger.standing("a").budget == Budget(threshold=0.25, extra_answers=1)


@pytest.mark.parametrize("budget", [0.5, {"threshold": 0.1}, "much", PLENTY], ids=["number", "dict", "text", "limits"])
def test_a_budget_of_ones_own_must_be_one(ledger, budget):
    with pytest.raises(QueenError):
        ledger.set_budget("a", budget, "op")
    assert ledger.standing("a").budget is None
    assert ledger.events() == []
    assert judge(ledger, Rules(PLENTY), picture(0)).letters == "A"


@pytest.mark.parametrize("wrong", [{"threshold": -1.0}, {"threshold": math.nan}, {"extra_answers": -1},
                                   {"extra_answers": 1.5}, {"threshold": "much"}], ids=str)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(LimitsError):
        Budget(**wrong)


@pytest.mark.parametrize("bad", BAD_CLIENTS, ids=lambda c: ascii(c)[:12])
def test_names_that_are_none_are_refused_and_nothing_is_logged(ledger, bad):
    rules = accuse(ledger)
    before = standings(ledger), ledger.events()
    calls = [
        lambda: ledger.pardon(bad, "op"),
        lambda: ledger.pardon("a", bad),
        lambda: ledger.allow(bad, "op"),
        lambda: ledger.allow("a", bad),
        lambda: ledger.set_budget(bad, Budget(), "op"),
        lambda: ledger.set_budget("a", Budget(), bad),
        lambda: ledger.acknowledge(1, bad),
        lambda: ledger.standing(bad),
        lambda: ledger.standing(bad, group=True),
        lambda: judge(ledger, replace(rules, groups={"a": {bad: Group(limits=PLENTY)}}), picture(0)),
    ]
    for call in calls:
        with pytest.raises(ClientError):
            call()
    assert (standings(ledger), ledger.events()) == before


def test_a_stranger_stands_at_the_beginning(ledger):
    standing = ledger.standing("nobody")
    assert (standing.name, standing.group, standing.queries, standing.wealth) == ("nobody", False, 0, 0.0)
    assert not standing.alarmed
    assert not standing.allowed
    assert (standing.extra_answers, standing.after_alarm, standing.budget, standing.coverage) == (0, 0, None, {})
    assert (ledger.standings(), ledger.events(), list(ledger.clients())) == ([], [], [])


def test_an_operator_may_prepare_a_client_that_never_asked(ledger):
    ledger.allow("early", "op")
    assert judge(ledger, Rules(PLENTY), picture(0, client="early")).trusted.all()


def test_a_client_that_only_operators_ever_named_is_not_on_record(ledger):
    ledger.pardon("ghost", "op")
    ledger.set_budget("ghost", Budget(extra_answers=1), "op")
    ledger.set_budget("ghost", None, "op")
    assert ledger.standings() == []
    assert list(ledger.clients()) == []


def test_a_fact_of_the_whole_ledger_is_said_once_or_replaced(ledger):
    assert ledger.fact("owner") is None
    assert ledger.set_fact("owner", "first", replace=False) == "first"
    assert ledger.set_fact("owner", "second", replace=False) == "first" == ledger.fact("owner")
    assert ledger.set_fact("owner", "third é") == "third é" == ledger.fact("owner")
    assert ledger.fact("other") is None
    assert ledger.standings() == []


def test_an_accepted_loss_gives_the_ledger_a_new_id_and_is_logged(ledger):
    first, second = (number * 8 for number in ("ab", "cd"))
    ids = [ledger.accept(lost, "boss") for lost in (first, second, first)]
    assert ledger.fact("id") == ids[-1]
    assert len(set(ids)) == 3
    assert {first, second, *ids[:-1]} <= set(ledger.fact("accepted").split())
    assert [(event.what, event.name, event.actor) for event in ledger.events()] == [("accept", "ledger", "boss")] * 3
    with pytest.raises(OptionError, match="expected the id"):
        ledger.accept("alice", "boss")
    with pytest.raises(ClientError):
        ledger.accept(first, "")
    ledger.check()
    ledger.verify()
    assert ledger.standings() == []
