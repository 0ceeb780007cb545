"""How every ledger keeps the evidence of several tests apart, numbers them, and tells groups that a client roams."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from queen.options import Group
from queen.sentinel.bets import Test
from queen.sentinel.sketch import Memory
from tests.reference.watch import Rules, Watcher
from tests.support.evidence import evidence_of, homes_of
from tests.support.ledgers import ALL_LEDGERS, redis_reopened, sqlite_reopened
from tests.support.queries import (
    FOREIGN,
    PLENTY,
    RULES,
    events,
    flags,
    judge,
    outcomes,
    picture,
    pictures,
    standings,
    traffic,
    wealth_of,
)

DURABLE = {"sqlite reopened": sqlite_reopened, "redis reopened": redis_reopened}


def a_test(number: int, account: str = "") -> Test:
    return replace(Rules(PLENTY), test=number, account=account).the_test


def test_two_tests_in_turn_keep_one_wealth_each(ledger):
    """Two servers with different calibrations must not wipe out each other's evidence."""
    rules = Rules(PLENTY, bar=wealth_of(*[FOREIGN] * 4))
    alarmed = []
    for i in range(8):
        alarmed += judge(ledger, replace(rules, test=1 + i % 2), picture(i, bet=FOREIGN)).alarmed.tolist()
        assert ledger.standing("a").wealth == wealth_of(*[FOREIGN] * min(4, 1 + i // 2))
    assert alarmed == [False] * 6 + [True] * 2


def bets_in(ledger) -> dict[int, int]:
    """By test, the one used last at the end, how many bets client a has placed in it."""
    return {test: clocks[0] for test, (clocks, _, _) in evidence_of(ledger, "a").items()}


def test_three_tests_in_turn_let_one_of_them_go_on(ledger):
    """A client that is sent to three servers with calibrations of their own must not go unnoticed."""
    rules = Rules(PLENTY, bar=wealth_of(*[FOREIGN] * 4))
    alarmed = [judge(ledger, replace(rules, test=1 + i % 3), picture(i, bet=FOREIGN)).alarmed.all() for i in range(12)]
    assert alarmed == [False] * 9 + [True] * 3  # from the fourth bet in the first test on


def test_a_third_test_takes_the_place_of_the_poorer(ledger):
    rules = Rules(PLENTY, bar=1e9)
    stream = iter(pictures(30, bet=FOREIGN))

    def bet(test: int, times: int = 1) -> dict[int, int]:
        for _ in range(times):
            judge(ledger, replace(rules, test=test), next(stream))
        return bets_in(ledger)

    bet(1, 2)
    bet(2)
    assert bet(3) == {1: 2, 3: 1}  # though 2 was used later than 1
    bet(3, 2)
    assert bet(2) == {3: 3, 2: 1}
    bet(2, 2)
    assert bet(1) == {3: 3, 1: 1}  # of two equals the one used last goes, else three in turn would never get on
    bet(1, 3)
    assert bet(2) == {1: 4, 2: 1}


def test_a_rich_test_that_is_no_longer_used_gives_way(ledger):
    """Else two other tests would take each other's place for ever, and no evidence would gather in either."""
    rules = Rules(PLENTY, bar=wealth_of(*[FOREIGN] * 9))
    judge(ledger, replace(rules, test=1), pictures(8, bet=FOREIGN))
    said = [
        judge(ledger, replace(rules, test=2 + i % 2), picture(50 + i, bet=FOREIGN)).alarmed.all() for i in range(40)
    ]
    assert said == [False] * 32 + [True] * 8


def test_a_rich_test_outlasts_sixteen_others_between_two_uses(ledger):
    """A client that is sent to many servers at random goes on in one of their tests."""
    rules, numbers = Rules(PLENTY, bar=1e9), iter(range(1000))

    def bet(test: int) -> dict[int, int]:
        judge(ledger, replace(rules, test=test), picture(next(numbers), bet=FOREIGN))
        return bets_in(ledger)

    bet(1)
    for uses in (2, 3, 4):
        bet(1)
        assert [bet(2 + i % 2)[1] for i in range(17)] == [
            uses
        ] * 17  # the first of them finds an empty place, or its own
    assert bet(4) == {2: 1, 4: 1}


def test_a_dropped_test_leaves_no_counts_behind(ledger):
    """Counts of the dropped test would make bets of another one in these classes weaker."""
    watcher = Watcher(Rules(PLENTY, bar=1e9))
    for i, (test, label) in enumerate([(1, 0), (1, 30), (2, 60), (3, 60), (3, 0), (3, 30), (2, 30), (1, 30), (1, 60)]):
        watcher.rules = Rules(PLENTY, bar=1e9, test=test)
        query = picture(i, label=label, bet=FOREIGN)
        watcher.ask(query)
        judge(ledger, watcher.rules, query)
        assert ledger.standing("a").wealth == watcher.account("a").wealth()


def test_only_a_new_picture_makes_a_test_the_one_used_last(ledger):
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, replace(rules, test=1), picture(0, bet=FOREIGN))
    judge(ledger, replace(rules, test=2), picture(1, bet=FOREIGN))
    judge(ledger, replace(rules, test=1), picture(0, bet=FOREIGN))  # a repeat
    assert list(bets_in(ledger)) == [1, 2]
    judge(ledger, replace(rules, test=1), picture(2, bet=FOREIGN))
    assert list(bets_in(ledger)) == [2, 1]


def test_a_pardon_clears_the_wealth_of_every_test(ledger):
    rules = Rules(PLENTY, bar=1e9)
    for test in (1, 2):
        judge(ledger, replace(rules, test=test), pictures(3, start=10 * test, bet=FOREIGN))
    ledger.pardon("a", "op")
    assert ledger.standing("a").wealth == 0.0
    for test in (1, 2):
        judge(ledger, replace(rules, test=test), picture(100 + test, bet=FOREIGN))
        assert ledger.standing("a").wealth == wealth_of(FOREIGN)


def test_tests_are_numbered_from_one_in_each_account(ledger):
    assert [ledger.number_of(a_test(number)) for number in (9, -4, 9, 2**63 - 1, -(2**63), -4)] == [1, 2, 1, 3, 4, 2]
    assert [ledger.number_of(a_test(number, "other")) for number in (-4, 9)] == [1, 2]
    assert ledger.number_of(a_test(77)) == 5
    assert ledger.standings() == []


def test_a_number_can_be_asked_for_without_claiming_it(ledger):
    assert [ledger.number_of(a_test(number), claim=False) for number in (9, 8)] == [1, 1]
    ledger.number_of(a_test(8))
    assert [ledger.number_of(a_test(number), claim=False) for number in (9, 8, 7)] == [2, 1, 2]
    assert ledger.number_of(a_test(9, "other"), claim=False) == 1
    assert ledger.number_of(a_test(7)) == 2


def test_judging_numbers_a_test_too(ledger):
    judge(ledger, Rules(PLENTY, test=5), picture(0))
    judge(ledger, Rules(PLENTY, test=6, account="other"), picture(1))
    assert [ledger.number_of(a_test(number)) for number in (4, 5)] == [2, 1]
    assert ledger.number_of(a_test(6, "other")) == 1


def test_every_further_test_of_an_account_needs_more_wealth(ledger):
    """The j-th test spends 6 / (pi j)^2 of alpha delta, so its bar is j^2 times the first."""
    rules = Rules(PLENTY, bar=0.0, alpha=0.9, delta=0.9)
    alarms_at = []
    for test in (1, 2):
        queries = [picture(i, client=f"client of {test}", bet=FOREIGN) for i in range(6)]
        alarms_at.append(judge(ledger, replace(rules, test=test), queries).alarmed.tolist().index(True))
    bars = [replace(rules, test=test).sum_that_accuses(test) / 10 for test in (1, 2)]
    assert bars[1] == pytest.approx(4 * bars[0])
    assert alarms_at == [
        next(i for i in range(6) if wealth_of(*[FOREIGN] * (i + 1)) >= bar) for bar in bars
    ]  # fmt: skip
    assert alarms_at[0] < alarms_at[1]


@pytest.mark.parametrize("make", DURABLE.values(), ids=DURABLE)
def test_numbers_and_both_wealths_survive_a_restart(make):
    rules = Rules(PLENTY, bar=1e9)
    with closing(make()) as ledger:
        for i in range(6):
            judge(ledger, replace(rules, test=(30, 20)[i % 2]), picture(i, bet=FOREIGN))
        assert ledger.standing("a").wealth == wealth_of(*[FOREIGN] * 3)
        assert [ledger.number_of(a_test(number)) for number in (10, 20, 30)] == [3, 2, 1]


@pytest.mark.parametrize("make", ALL_LEDGERS.values(), ids=ALL_LEDGERS)
@pytest.mark.parametrize("way", ["enforced", "observed", "allowed"])
def test_a_batch_may_be_cut_anywhere(make, way, monkeypatch):
    """Verdicts, wealth and memories are those of the reference, which takes one query after the other."""
    monkeypatch.setattr(Memory, "CAPACITY", 40)
    queries = traffic(5, 160)
    rules = replace(RULES, bar=6.0, enforce=way != "observed")
    watcher = Watcher(rules, 40)
    if way == "allowed":
        watcher.allow("c", "op")
    expected = [watcher.ask(query) for query in queries]
    alarms = [event for event in watcher.events if event[0] == "alarm"]
    assert {event[1] for event in alarms} >= {"c"}
    (first, *_) = (i for i, row in enumerate(expected) if row[2])
    for at in (first - 1, first, first + 1, 159):
        with closing(make()) as ledger:
            if way == "allowed":
                ledger.allow("c", "op")
            rows = outcomes(judge(ledger, rules, queries[:at])) + outcomes(judge(ledger, rules, queries[at:]))
            assert rows == expected
            assert standings(ledger) == watcher.standings()
            assert events(ledger) == watcher.events


def roaming(*clients: str, team: str = "team:1", enforce: bool = True) -> Rules:
    """The clients are in a team; four strong bets raise its alarm, two accuse a client."""
    shared = {team: Group(limits=PLENTY, enforce_alarm=enforce)}
    return Rules(PLENTY, bar=3.0, groups=dict.fromkeys(clients, shared))


THIEVES = ("thief 1", "thief 2", "thief 3", "thief 4")


def raise_alarm(ledger, team: str = "team:1") -> None:
    """One query each of four clients, so that none is accused itself."""
    thieves = [f"{name} of {team}" for name in THIEVES]
    stream = [picture(500 + i, client=name, bet=FOREIGN) for i, name in enumerate(thieves)]
    judge(ledger, roaming(*thieves, team=team), stream)
    assert ledger.standing(team, group=True).alarmed
    assert not any(ledger.standing(name).alarmed for name in thieves)


def test_a_group_is_accused_by_sixteen_times_the_wealth_that_accuses_a_client(ledger):
    """So a client with sixteen homes is accused in any of them as rarely as in its own account."""
    bar = wealth_of(*[FOREIGN] * 6) / 16
    names = [f"client {i}" for i in range(8)]
    for factor, expected in ((1.0, 5), (1.0 + 1e-12, 6)):
        group = {f"team:{factor}": Group(limits=PLENTY)}
        rules = Rules(PLENTY, bar=bar * factor, groups=dict.fromkeys(names, group))
        for i, name in enumerate(names):
            judge(ledger, rules, picture(i, client=name, bet=FOREIGN))
            assert ledger.standing(*group, group=True).alarmed == (i >= expected)


def test_a_query_from_elsewhere_does_not_spare_a_client_the_alarm_of_its_group(ledger):
    names = [f"member {i}" for i in range(5)]
    for i, name in enumerate(names):
        judge(ledger, roaming(name, team=f"team:{name}"), picture(i, client=name))
    raise_alarm(ledger)
    stream = [picture(10 + i, client=name) for i, name in enumerate(names)]
    assert judge(ledger, roaming(*names), stream).alarmed.all()


def test_the_first_sixteen_groups_of_a_kind_are_homes(ledger):
    """A client that roams further is not denied by the alarms of others, though it pays from their budgets."""
    for client, groups in (("a", 15), ("b", 16)):
        for i in range(groups):
            judge(ledger, roaming(client, team=f"team:{i + 2}"), picture(i, client=client))
    for team in ("team:1", "team:3"):
        raise_alarm(ledger, team)
    assert flags(judge(ledger, roaming("a", "b"), [picture(100), picture(100, client="b")])) == [
        ("A", False, True, False),
        ("A", False, False, False),
    ]
    assert ledger.standing("team:1", group=True).extra_answers == 3 + 1
    assert judge(ledger, roaming("b", team="team:3"), picture(101, client="b")).alarmed.all()


def test_no_more_than_sixteen_homes_of_a_kind_are_remembered(ledger):
    zone = {"zone:1": Group(limits=PLENTY, enforce_alarm=True)}
    for i in range(40):
        team = roaming("a", team=f"team:{i % 20}").groups["a"]
        judge(ledger, replace(roaming("a"), groups={"a": team | zone}), picture(i))
    assert homes_of(ledger, "a") == {"team": [f"team:{i}" for i in range(16)], "zone": ["zone:1"]}


def test_a_pardon_forgets_the_homes(ledger):
    for i in range(16):
        judge(ledger, roaming("a", team=f"team:{i + 2}"), picture(i))
    raise_alarm(ledger)
    assert not judge(ledger, roaming("a"), picture(50)).alarmed.any()
    ledger.pardon("a", "op")
    assert homes_of(ledger, "a") == {}
    assert judge(ledger, roaming("a"), picture(51)).alarmed.all()
    assert homes_of(ledger, "a") == {"team": ["team:1"]}


def test_a_client_that_leaves_an_accused_home_is_heard_elsewhere_and_denied_when_it_returns(ledger):
    judge(ledger, roaming("a"), picture(0))
    raise_alarm(ledger)
    said = [judge(ledger, roaming("a", team=team), picture(1 + i)).alarmed.tolist()
            for i, team in enumerate(("team:1", "team:2", "team:1"))]  # fmt: skip
    assert said == [[True], [False], [True]]


def test_a_group_whose_alarm_is_not_enforced_is_nobodys_home(ledger):
    judge(ledger, roaming("a", team="team:2", enforce=False), picture(0))
    judge(ledger, replace(roaming("a", team="team:2"), enforce=False), picture(1))
    assert homes_of(ledger, "a") == {}


def test_every_client_of_one_batch_has_its_own_homes(ledger):
    for i in range(16):
        judge(ledger, roaming("a", team=f"team:{i + 2}"), picture(i))
    names = (*THIEVES, "a", "b")
    stream = [picture(50 + i, client=name, bet=FOREIGN if i < 4 else ()) for i, name in enumerate(names)]
    assert judge(ledger, roaming(*names), stream).alarmed.tolist() == [False, False, False, True, False, True]


def test_steps_from_one_picture_are_compared_with_the_original_alone(ledger):
    """Small steps would otherwise lead from picture to picture without a bet."""
    rules = Rules(PLENTY, bar=1e9)
    walk = [picture(0, bet=FOREIGN, aside=0.5 * i) for i in range(9)]  # every second one is a tolerance further
    judge(ledger, rules, walk)
    assert ledger.standing("a").wealth == wealth_of(*[FOREIGN] * 5)


def test_an_answered_input_whose_picture_was_forgotten_is_new(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(replace(PLENTY, extra_answers=4))
    known = picture(0)
    judge(ledger, rules, [known, picture(1, (0.0, 0.0)), picture(2, client="b")])
    assert not judge(ledger, rules, known).spent.any()
    assert ledger.standing("a").extra_answers == 1
    judge(ledger, rules, [picture(3), picture(4)])  # two pictures and two answers later
    judge(ledger, rules, known)
    assert ledger.standing("a").extra_answers == 4


def test_refused_pictures_do_not_push_answers_out(ledger, monkeypatch):
    """Pictures and answers are forgotten apart; without its picture an answer is not recognised, though."""
    monkeypatch.setattr(Memory, "CAPACITY", 3)
    rules = Rules(replace(PLENTY, extra_answers=1))
    judge(ledger, rules, pictures(3))  # one is answered
    assert judge(ledger, rules, pictures(3)).spent.tolist() == [False, True, True]
    judge(ledger, rules, picture(3))
    assert judge(ledger, rules, picture(0)).spent.all()


@pytest.mark.parametrize("make", DURABLE.values(), ids=DURABLE)
def test_a_restart_after_every_batch_changes_nothing(make, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 40)
    queries = traffic(14, 240)
    watcher = Watcher(RULES, 40)
    expected = [watcher.ask(query) for query in queries]
    with closing(make()) as ledger:
        rows = [row for i in range(0, 240, 11) for row in outcomes(judge(ledger, RULES, queries[i : i + 11]))]
        assert rows == expected
        assert standings(ledger) == watcher.standings()
        assert events(ledger) == watcher.events
    assert {row[0] for row in rows} == set("ABCD")
    assert all(any(row[i] for row in rows) for i in (2, 4, 5))  # alarmed, repeated, cut off
