"""Every ledger is for one bundle, and may be taken over by another: what is kept then, and what is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queen.bundle.binding import Binding, Rebound, bind, rebind
from queen.errors import BindingError, ClientError
from queen.ledger import Ledger
from queen.ledger.base import BINDING, UNFINISHED
from queen.ledger.redis import admin
from queen.ledger.words import Budget
from queen.options import Group
from tests.reference.watch import Rules
from tests.support.evidence import evidence_of
from tests.support.ledgers import run_threads
from tests.support.queries import FOREIGN, PLENTY, USUAL, flags, judge, picture

OLD = Binding("a" * 64, 10, 0.02, "")
RETRAINED = Binding("b" * 64, 20, 0.02, "")
GROUP = {"team": Group(limits=PLENTY)}
RULES = Rules(PLENTY, bar=1.0, groups={"thief": GROUP, "user": GROUP})


@pytest.fixture(autouse=True)
def nobody_to_wait_for(monkeypatch):
    monkeypatch.setattr(admin, "STOP_SECONDS", 0.0)


def use(ledger: Ledger) -> None:
    """A user with records and a budget, an accused thief, a trusted client, and a group that has seen it all."""
    judge(ledger, RULES, [picture(i, (0.6 * i, 0.0), client="user", label=i, bet=USUAL) for i in range(3)])
    judge(ledger, RULES, [picture(7, client="thief", bet=FOREIGN), picture(8, (0.1, 0.1), client="thief")])
    ledger.set_budget("user", Budget(extra_answers=5), "olga")
    ledger.allow("friend", "olga")
    ledger.acknowledge(1, "olga")


def test_the_first_bundle_binds_the_ledger_and_is_known_ever_after(ledger):
    assert bind(ledger, OLD)
    assert not bind(ledger, OLD)
    assert OLD.bundle in ledger.fact(BINDING)


def test_a_ledger_from_before_there_were_bindings_is_bound_to_the_first_that_comes(ledger):
    use(ledger)
    before = ledger.standings()
    assert bind(ledger, OLD)
    assert ledger.standings() == before
    with pytest.raises(BindingError):
        bind(ledger, RETRAINED)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (RETRAINED, "20 classes"),
        (replace(OLD, bundle="c" * 64), "bundle cccccccccccc"),
        (replace(OLD, radius=0.05), "radius 0.05"),
        (replace(OLD, radius=(0.02,) * 9 + (0.03,)), "radius by class"),
        (replace(OLD, account="spring"), "account 'spring'"),
    ],
)
def test_another_bundle_is_refused_by_name_and_changes_nothing(ledger, other, says):
    bind(ledger, OLD)
    use(ledger)
    before = ledger.fact(BINDING), ledger.standings()
    with pytest.raises(BindingError, match=r"expected bundle aaaaaaaaaaaa \(10 classes, .*, got ") as caught:
        bind(ledger, other)
    assert says in str(caught.value).partition("got ")[2]
    assert "queen ledger rebind" in str(caught.value)
    assert (ledger.fact(BINDING), ledger.standings()) == before


@pytest.mark.parametrize("radius", [0.02 * (1 + 1e-9), (0.02,) * 10])
def test_rounding_and_equal_radii_by_class_are_no_difference(ledger, radius):
    bind(ledger, OLD)
    assert not bind(ledger, replace(OLD, radius=radius))


def test_of_many_that_come_at_once_all_agree_on_the_first(ledger):
    bound, refused = [], []

    def work(number: int) -> None:
        try:
            bound.append((number % 2, bind(ledger, (OLD, RETRAINED)[number % 2])))
        except BindingError:
            refused.append(number % 2)

    run_threads(work, 8)
    (winner,) = {which for which, _ in bound}
    assert sum(is_new for _, is_new in bound) >= 1
    assert (len(bound), refused) == (4, [1 - winner] * 4)


def test_a_bundle_with_other_maps_takes_over_all_but_coverage_and_records(ledger):
    bind(ledger, OLD)
    use(ledger)
    names = [("user", False), ("thief", False), ("friend", False), ("team", True)]
    before = [ledger.standing(name, group=group) for name, group in names]
    evidence = [evidence_of(ledger, name, group=group) for name, group in names]
    events = ledger.events()
    assert before[0].coverage
    assert evidence[0]
    result = rebind(ledger, RETRAINED, "olga")
    assert result == Rebound(changed=True, forgot_coverage=True, accepted=(RETRAINED,))
    assert [ledger.standing(name, group=group) for name, group in names] == [replace(s, coverage={}) for s in before]
    assert [evidence_of(ledger, name, group=group) for name, group in names] == evidence
    assert ledger.records("user") == ledger.records("thief") == {}
    *kept, last = ledger.events()
    assert kept == events
    assert (last.what, last.name, last.actor, last.group) == ("rebind", RETRAINED.name, "olga", False)
    assert not bind(ledger, RETRAINED)
    with pytest.raises(BindingError):
        bind(ledger, OLD)
    # What was spent is free again, what was answered is remembered, and who was accused is still accused.
    assert flags(judge(ledger, RULES, picture(0, (0.0, 0.0), client="user", bet=USUAL)))[0][0] == "C"
    assert judge(ledger, RULES, picture(9, client="thief")).alarmed.all()


def test_taking_over_and_back_again_keeps_alarms_and_the_evidence_of_both(ledger):
    bind(ledger, OLD)
    use(ledger)
    first, second = RULES, replace(RULES, test=2, bar=1e9)
    rebind(ledger, RETRAINED, "olga")
    judge(ledger, second, [picture(i, client="user", bet=USUAL) for i in range(20, 25)])
    of_both = evidence_of(ledger, "user")
    assert len(of_both) == 2
    rebind(ledger, OLD, "olga")
    assert evidence_of(ledger, "user") == of_both
    judge(ledger, first, picture(30, client="user", bet=USUAL))
    assert set(evidence_of(ledger, "user")) == set(of_both)
    assert ledger.standing("thief").alarmed
    assert ledger.standing("user").budget == Budget(extra_answers=5)
    assert [event.what for event in ledger.events()].count("rebind") == 2


def test_a_new_account_joins_without_loss_and_both_may_go_on(ledger):
    bind(ledger, OLD)
    use(ledger)
    before, other = ledger.standings(), replace(OLD, account="spring")
    assert rebind(ledger, other, "olga") == Rebound(changed=True, forgot_coverage=False, accepted=(OLD, other))
    assert not bind(ledger, OLD)
    assert not bind(ledger, other)
    assert ledger.standings() == before
    assert rebind(ledger, OLD, "olga") == Rebound(changed=False, forgot_coverage=False, accepted=(OLD, other))
    assert [event.what for event in ledger.events()].count("rebind") == 1


def test_another_radius_replaces_the_old_one_and_coverage_stays_as_it_was_counted(ledger):
    bind(ledger, OLD)
    use(ledger)
    before, wider = ledger.standings(), replace(OLD, radius=0.05)
    assert rebind(ledger, wider, "olga") == Rebound(changed=True, forgot_coverage=False, accepted=(wider,))
    assert ledger.standings() == before
    with pytest.raises(BindingError, match=r"expected .*radius 0.05.* got .*radius 0.02"):
        bind(ledger, OLD)


def test_a_take_over_that_was_interrupted_is_refused_until_it_is_finished(ledger):
    bind(ledger, OLD)
    use(ledger)
    rebind(ledger, RETRAINED, "olga")
    ledger.set_fact(BINDING, UNFINISHED + ledger.fact(BINDING))
    judge(ledger, RULES, picture(40, (0.3, 0.3), client="user"))  # not forgotten yet
    for binding in (OLD, RETRAINED):
        with pytest.raises(BindingError, match=r"being taken over by bundle bbb.*rebind .* again"):
            bind(ledger, binding)
    assert rebind(ledger, RETRAINED, "olga").forgot_coverage
    assert not bind(ledger, RETRAINED)
    assert ledger.standing("user").coverage == {}


@pytest.mark.parametrize("text", ["", "{}x", '[{"bundle": "a"}]', '[{"of": "a newer version"}]', "[7]"])
def test_a_binding_that_nobody_can_read_is_refused(ledger, text):
    ledger.set_fact(BINDING, text)
    with pytest.raises(BindingError, match="newer version"):
        bind(ledger, OLD)
    assert rebind(ledger, OLD, "olga") == Rebound(changed=True, forgot_coverage=True, accepted=(OLD,))
    assert not bind(ledger, OLD)


@pytest.mark.parametrize("actor", ["", "a\0b"])
def test_who_takes_over_must_have_a_name(ledger, actor):
    bind(ledger, OLD)
    with pytest.raises(ClientError):
        rebind(ledger, RETRAINED, actor)
    assert not bind(ledger, OLD)
