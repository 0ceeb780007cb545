"""How every ledger charges groups of clients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from queen.errors import LabelError, OptionError
from queen.ledger import Ledger
from queen.ledger.rows import make_rows
from queen.ledger.words import Budget
from queen.options import Group, Limits
from tests.reference.watch import Rules
from tests.support.queries import (
    FOREIGN,
    NAMES,
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


def team(limits: Limits = PLENTY, *, enforce: bool = False, bar: float = math.inf, own: Limits = PLENTY) -> Rules:
    """Three clients that share one group; "outsider" is in none."""
    shared = {"team": Group(limits=limits, enforce_alarm=enforce)}
    return Rules(own, bar=bar, groups=dict.fromkeys(NAMES, shared))


def test_a_group_has_one_budget_for_all_its_members(ledger):
    rules = team(replace(PLENTY, extra_answers=2))
    stream = [picture(i, client=name) for i, name in enumerate(["a", "b", "outsider", "c", "a"])]
    assert judge(ledger, rules, stream).spent.tolist() == [False, False, False, True, True]
    assert ledger.standing("team", group=True).extra_answers == 2
    assert ledger.standing("team", group=True).queries == 4
    assert list(ledger.clients()) == ["a", "b", "c", "outsider"]


def test_a_group_keeps_records_of_its_own_under_limits_of_its_own(ledger):
    rules = team(Limits(radius=0.5, threshold=0.05))
    stream = [picture(0, (0.0, 0.0), client="a"), picture(1, (0.3, 0.0), client="b"), picture(2, (0.9, 0.0))]
    judgement = judge(ledger, rules, stream)
    assert judgement.letters == "CCC"  # the client's own
    assert judgement.spent.tolist() == [False, True, True]  # the group's class was spent by the first
    group = ledger.standing("team", group=True)
    assert (len(group.coverage), group.extra_answers) == (1, 0)
    assert group.coverage[0] == pytest.approx(0.25 * 0.921350**2, rel=1e-5)
    assert list(ledger.coverage("b")) == [0]  # it got no answer, but its own account had agreed to one


def test_a_spent_class_gives_no_answer_outside_its_disc_or_near_a_record_either(ledger):
    rules = Rules(Limits(radius=0.5, threshold=0.0, extra_answers=100))
    stream = [picture(0, (0.0, 0.0)), picture(1, (0.1, 0.0)), picture(2, (2.0, 0.0)), picture(3, (2.0, 0.0), label=1)]
    judgement = judge(ledger, rules, [*stream, stream[0]])
    assert judgement.letters == "CDAAD"
    assert judgement.spent.tolist() == [False, True, True, False, False]  # the repeat of an answer is free
    assert ledger.standing("a").extra_answers == 1


def test_a_group_is_pardoned_by_name_and_its_members_are_not(ledger):
    rules = replace(team(), bar=1.0)
    ledger.pardon("team", "op", group=True)
    judge(ledger, rules, [picture(0, bet=FOREIGN)])
    assert ledger.standing("team", group=True).queries in (0, 1)
    before = ledger.standing("a")
    ledger.pardon("team", "op", group=True)
    assert ledger.standing("team", group=True).wealth == 0
    assert not ledger.standing("team", group=True).alarmed
    assert ledger.standing("a") == before
    assert ledger.standing("team").queries == 0  # the client of that name does not exist
    assert (ledger.events()[-1].what, ledger.events()[-1].group) == ("pardon", True)


def test_a_repeat_of_what_another_member_got_is_free_for_the_group_but_not_for_the_client(ledger):
    rules = team(replace(PLENTY, extra_answers=1))
    stream = [picture(0, client="a"), picture(0, client="b"), picture(1, client="b")]
    assert judge(ledger, rules, stream).spent.tolist() == [False, False, True]
    assert ledger.standing("b").extra_answers == 2  # what the group refused was charged to the client before


def test_accounts_are_asked_in_the_order_of_their_kinds_and_what_one_denies_the_next_never_hears_of(ledger):
    none, some = Group(limits=replace(PLENTY, extra_answers=0)), Group(limits=PLENTY)
    groups = {"z:1": some, "b:9": some, "c": none, "b-": some}  # in the order b, b-, c, z, whatever comes first here
    for client in ("a", "b"):
        rules = Rules(PLENTY, groups={client: dict(reversed(groups.items())) if client == "b" else groups})
        assert judge(ledger, rules, picture(0, client=client)).spent.all()
    found = {name: ledger.standing(name, group=True) for name in groups}
    assert {name: (s.queries, s.extra_answers) for name, s in found.items()} == {
        "b:9": (2, 1), "b-": (2, 1), "c": (2, 0), "z:1": (0, 0)
    }  # fmt: skip
    assert [s.name for s in ledger.standings()] == ["a", "b", "b-", "b:9", "c"]


def test_two_groups_of_one_kind_are_refused_and_nothing_changes(ledger):
    rules = Rules(PLENTY, groups={"a": dict.fromkeys(["tenant:7", "tenant:8"], Group(limits=PLENTY))})
    with pytest.raises(OptionError, match="one group of each kind"):
        judge(ledger, rules, picture(0))
    assert ledger.standings() == []


def test_no_row_has_failed_where_the_ledger_is_one_piece(ledger):
    judgement = judge(ledger, Rules(PLENTY), pictures(3))
    assert judgement.failed.tolist() == [False] * 3
    assert judgement.failed.dtype == np.bool_


def test_a_ledger_that_can_write_says_so_and_changes_nothing(ledger):
    judge(ledger, Rules(PLENTY), pictures(2))
    before = standings(ledger), ledger.events()
    ledger.check()
    assert (standings(ledger), ledger.events()) == before


def test_what_a_member_is_refused_costs_its_group_nothing(ledger):
    rules = team(replace(PLENTY, extra_answers=2))
    ledger.set_budget("a", Budget(extra_answers=0), "op")
    assert judge(ledger, rules, [picture(i, client="a") for i in range(8)]).spent.all()
    assert not judge(ledger, rules, [picture(20, client="b"), picture(21, client="b")]).spent.any()
    assert ledger.standing("team", group=True).extra_answers == 2


def test_a_group_remembers_all_that_its_members_sent_in_one_batch(ledger):
    rules = team(replace(PLENTY, extra_answers=3))
    stream = [picture(i, client=name) for i, name in enumerate(NAMES)]
    judge(ledger, rules, stream)
    assert not judge(ledger, rules, stream).spent.any()
    assert ledger.standing("team", group=True).extra_answers == 3


def test_a_query_that_the_group_refused_is_refused_again(ledger):
    rules = team(replace(PLENTY, extra_answers=0))
    assert judge(ledger, rules, [picture(0), picture(0), picture(0, client="b")]).spent.all()


def test_an_accused_member_no_longer_feeds_its_group(ledger):
    rules = team(bar=1.0)
    judge(ledger, rules, [picture(0), picture(1, bet=FOREIGN), picture(2), picture(3, (0.0, 0.0))])
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers, group.wealth, group.coverage) == (1, 1, 0.0, {})


def test_a_member_whose_alarm_has_no_consequences_goes_on_feeding_its_group(ledger):
    rules = replace(team(bar=1.0), enforce=False)
    judge(ledger, rules, [picture(0), *pictures(3, start=1, bet=FOREIGN), picture(4)])
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers, group.alarmed) == (5, 5, True)


def test_an_allowed_member_feeds_no_group_and_is_not_stopped_by_one(ledger):
    rules = team(replace(PLENTY, extra_answers=0), enforce=True, bar=1.0)
    ledger.allow("a", "op")
    assert flags(judge(ledger, rules, [picture(0), picture(1, bet=FOREIGN)]))[0] == ("A", False, False, True)
    assert ledger.standing("team", group=True).queries == 0
    assert judge(ledger, rules, picture(2, client="b")).spent.all()
    assert not judge(ledger, rules, picture(3)).spent.any()


@pytest.mark.parametrize("enforce", [False, True], ids=["reported", "enforced"])
def test_a_group_alarm_reaches_its_members_only_where_it_is_enforced(ledger, enforce):
    rules = team(enforce=enforce, bar=9.0)
    stream = [picture(i, client=name, bet=FOREIGN) for i, name in enumerate([*NAMES, *NAMES, "outsider"])]
    assert judge(ledger, rules, stream).alarmed.tolist() == [False] * 4 + [enforce] * 2 + [False]
    assert ledger.standing("team", group=True).alarmed
    assert not any(ledger.standing(name).alarmed for name in NAMES)
    (event,) = ledger.events()
    assert (event.what, event.name, event.group, event.client) == ("alarm", "team", True, "b")
    assert (event.wealth, event.queries) == (wealth_of(*[FOREIGN] * 5), 5)
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers) == (6, 4 if enforce else 6)


def accused_team(ledger: Ledger, after_alarm: float = math.inf, own: Limits = PLENTY) -> Rules:
    """A team of which a and b have got an answer each before its alarm was raised and enforced."""
    rules = replace(team(enforce=True, bar=9.0, own=own), after_alarm=after_alarm)
    judge(ledger, rules, [picture(0), picture(1, client="b")])
    judge(ledger, rules, [picture(i, client=NAMES[i % 3], bet=FOREIGN) for i in range(2, 7)])
    assert ledger.standing("team", group=True).alarmed
    assert ledger.standing("team", group=True).after_alarm == 1
    return rules


def test_what_an_accused_group_denies_is_cut_off_since_decoys_would_reach_neighbours(ledger):
    rules = accused_team(ledger)
    judgement = judge(ledger, rules, [picture(20), picture(0), picture(0, client="outsider"), picture(21, client="c")])
    assert judgement.alarmed.tolist() == [True, True, False, True]
    assert judgement.repeated.tolist() == [False, True, False, False]
    assert judgement.cut_off.tolist() == [True, False, False, True]
    assert ledger.standing("team", group=True).after_alarm == 4
    assert {ledger.standing(name).after_alarm for name in (*NAMES, "outsider")} == {0}


def test_what_one_member_was_answered_another_may_get_from_an_accused_group_at_its_own_cost(ledger):
    rules = accused_team(ledger, own=replace(PLENTY, extra_answers=4))
    before = ledger.standing("b").extra_answers
    judgement = judge(ledger, rules, [picture(0, client="b"), picture(0, client="b")])
    assert judgement.repeated.all()
    assert ledger.standing("b").extra_answers == before + 1
    ledger.set_budget("b", Budget(extra_answers=0), "op")
    again = judge(ledger, rules, [picture(0, client="b"), picture(2, client="b")])
    assert (again.repeated.tolist(), again.spent.tolist()) == ([True, False], [False, True])


def test_the_members_of_an_accused_group_are_counted_together(ledger):
    rules = accused_team(ledger, after_alarm=3)
    sent = [picture(0), picture(1, client="b"), picture(0), picture(1, client="b")]
    judgement = judge(ledger, rules, sent)
    assert judgement.repeated.tolist() == [True, True, False, False]
    assert judgement.cut_off.tolist() == [False, False, True, True]
    ledger.pardon("team", "op", group=True)
    assert ledger.standing("team", group=True).after_alarm == 0
    assert not judge(ledger, rules, sent).alarmed.any()


def test_a_repeat_is_none_if_another_scope_denies_it(ledger):
    rules = team(replace(PLENTY, extra_answers=1), bar=1.0)
    assert judge(ledger, rules, [picture(0), picture(1)]).spent.tolist() == [False, True]  # the second by the group
    judge(ledger, rules, picture(2, bet=FOREIGN))
    assert outcomes(judge(ledger, rules, [picture(0), picture(1)])) == [
        ("A", False, True, False, True, False),
        ("A", False, True, False, False, True),
    ]
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers, group.after_alarm) == (4, 1, 0)


@pytest.mark.parametrize("way", ["more budget", "another group"])
def test_what_a_group_denied_is_not_answered_after_the_alarm_though_the_client_itself_was_granted_it(ledger, way):
    rules = team(replace(PLENTY, extra_answers=1), bar=1.0)
    assert judge(ledger, rules, [picture(0), picture(1)]).spent.tolist() == [False, True]
    assert judge(ledger, rules, picture(2, bet=FOREIGN)).alarmed.all()
    if way == "more budget":
        rules = team(PLENTY, bar=1.0)
    else:
        rules = replace(rules, groups={"a": {"other": Group(limits=PLENTY)}})
    name = "team" if way == "more budget" else "other"
    judgement = judge(ledger, rules, [picture(0), picture(1), picture(1)])
    assert judgement.repeated.tolist() == [way == "more budget", False, False]
    assert judgement.alarmed.all()
    assert judgement.cut_off.tolist() == [way != "more budget", True, True]
    assert not judgement.spent.any()
    assert ledger.standing(name, group=True).extra_answers == (1 if way == "more budget" else 0)


def test_a_client_and_its_group_may_both_stand_accused(ledger):
    rules = accused_team(ledger, after_alarm=3)
    assert judge(ledger, replace(rules, bar=1.0), picture(30, bet=FOREIGN)).alarmed.all()
    judgement = judge(ledger, rules, [picture(0), picture(31), picture(0)])
    assert judgement.repeated.tolist() == [True, False, False]
    assert judgement.cut_off.tolist() == [False, False, True]  # it is the client's own alarm that denies the second
    counts = ledger.standing("a").after_alarm, ledger.standing("team", group=True).after_alarm
    assert counts == (4, 2)  # what the client's own scope denies, the group never hears of


def test_a_group_pays_for_honest_answers_also_after_an_alarm_that_nobody_acts_upon(ledger):
    rules = replace(team(replace(PLENTY, extra_answers=3), enforce=True, bar=1.0), enforce=False)
    stream = [picture(i, bet=FOREIGN) for i in range(5)]
    assert judge(ledger, rules, stream).spent.tolist() == [False] * 3 + [True] * 2
    assert ledger.standing("team", group=True).extra_answers == 3


def test_a_pardon_of_a_member_leaves_the_group_accused(ledger):
    rules = team(enforce=True, bar=9.0)
    judge(ledger, rules, [picture(i, client=name, bet=FOREIGN) for i, name in enumerate([*NAMES, "a", "b"])])
    ledger.pardon("b", "op")
    assert ledger.standing("team", group=True).alarmed
    assert judge(ledger, rules, picture(9, client="b")).alarmed.all()


def test_a_client_and_a_group_of_the_same_name_do_not_mix(ledger):
    limits = replace(PLENTY, extra_answers=2)
    rules = Rules(PLENTY, bar=1e9, groups={"b": {"a": Group(limits=limits)}})
    judge(ledger, rules, [picture(0, (0.0, 0.0), client="a", bet=FOREIGN), *pictures(2, client="b", bet=USUAL)])
    client, group = ledger.standing("a"), ledger.standing("a", group=True)
    assert (client.group, client.queries, client.extra_answers, list(client.coverage)) == (False, 1, 0, [0])
    assert (group.group, group.queries, group.extra_answers, list(group.coverage)) == (True, 2, 2, [])
    ledger.allow("a", "op")
    ledger.set_budget("a", Budget(extra_answers=50), "op")
    assert ledger.standing("a", group=True) == group
    assert judge(ledger, rules, picture(5, client="b")).spent.all()
    assert list(ledger.clients()) == ["a", "b"]
    assert [(s.name, s.group) for s in ledger.standings()] == [("a", False), ("b", False), ("a", True)]


def test_groups_keep_coverage_without_the_sentinel_too(ledger):
    shared = {"team": Group(limits=Limits(radius=0.25, threshold=0.0))}
    points = np.array([[0.0, 0.0], [0.9, 0.0]])
    rows = make_rows(("a", "b"), [0, 1], [0, 0], points, PLENTY, groups=[shared, shared])
    judgement = ledger.judge_rows(rows)
    assert (judgement.letters, judgement.spent.tolist()) == ("CC", [False, True])
    assert list(ledger.standing("team", group=True).coverage) == [0]
    assert ledger.standing("team", group=True).queries == 2
    assert [ledger.standing(name).queries for name in ("a", "b")] == [1, 1]


@pytest.mark.parametrize(
    ("limits", "error"), [(Limits(radius=(0.1, 0.1)), LabelError)], ids=["radii for too few classes"]
)
def test_a_group_with_bad_limits_is_refused_and_changes_nothing(ledger, limits, error):
    with pytest.raises(error):
        judge(ledger, team(limits), [picture(0), picture(1, label=2)])
    assert ledger.standings() == []
