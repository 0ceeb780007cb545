"""What binds a ledger to a bundle: it stays when a bundle is calibrated again, and changes with the model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from queen import Guard, load
from queen.bundle.binding import binding_of, rebind
from queen.errors import BindingError
from queen.ledger import MemoryLedger, SqliteLedger
from queen.options import Group, Limits
from tests.support.guards import SECRET
from tests.support.serving import digits, recalibrated_bundle, retrained_bundle, small_bundle, small_guard

RADIUS = small_guard().bundle.limits.radius


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "strict"},
        {"observe": True},
        {"alpha": 0.2},
        {"on_alarm": "decoy", "on_spent": "reverse", "after_alarm": None, "digits": 3},
        {"groups": {"tenant": Group(limits=Limits(radius=0.5))}},
        {"limits": Limits(radius=RADIUS, threshold=0.5, extra_answers=1)},
        {"keep_label": True, "draw": 1},
    ],
)
def test_options_that_leave_records_alone_do_not_count(options):
    guard = small_guard()
    assert binding_of(guard.bundle.with_options(**options)) == guard.binding


def test_a_recalibrated_bundle_is_the_same_and_one_that_started_over_has_another_account():
    first, again = load(small_bundle()), load(recalibrated_bundle())
    assert first.bundle.test != again.bundle.test
    assert first.binding == again.binding
    started_over = load(recalibrated_bundle(start_over=True)).binding
    assert started_over.account
    assert replace(started_over, account="") == first.binding


def test_a_bundle_without_calibration_is_for_the_first_account():
    bare = replace(small_guard().bundle, policy="paper", calibration=None)
    assert binding_of(bare) == small_guard().binding


def test_a_retrained_model_and_another_number_of_classes_are_other_bundles():
    bindings = [load(folder).binding for folder in (small_bundle(), retrained_bundle(), retrained_bundle(20))]
    assert [binding.classes for binding in bindings] == [10, 10, 20]
    assert len({binding.bundle for binding in bindings}) == 3
    assert not any(a.accepts(b) for a in bindings for b in bindings if a is not b)


def test_saving_and_loading_changes_nothing():
    assert load(small_bundle()).binding == small_guard().binding


def test_a_guard_binds_its_ledger_when_it_first_uses_it(tmp_path):
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        guard = load(retrained_bundle(20), ledger=ledger)
        assert ledger.fact("binding") is None  # to make a guard is not to use it
        load(small_bundle(), ledger=ledger).answer(digits()[:1], client="alice")
        with pytest.raises(BindingError, match=r"expected .*10 classes.*got .*20 classes"):
            guard.answer(digits()[:1], client="alice")
        assert ledger.standing("alice").queries == 1
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger, pytest.raises(BindingError):
        load(retrained_bundle(), ledger=ledger).answer(digits()[:1], client="alice")


def test_another_radius_on_a_shared_ledger_is_refused_and_other_limits_are_not():
    guard = small_guard()
    guard.answer(digits()[:1], client="alice")
    limits = guard.bundle.limits
    guard.with_options(limits=replace(limits, threshold=0.1, extra_answers=7)).answer(digits()[:1], client="alice")
    wider = guard.with_options(limits=replace(limits, radius=2 * RADIUS))
    with pytest.raises(BindingError, match=f"got .*radius {2 * RADIUS}"):
        wider.answer(digits()[:1], client="alice")
    assert guard.fresh(limits=wider.bundle.limits).answer(digits()[:1], client="alice").honest.all()


def test_a_guard_whose_ledger_was_taken_over_judges_nobody_once_it_has_looked():
    old = load(small_bundle())
    new = Guard(load(retrained_bundle()).bundle, ledger=old.ledger, secret=SECRET)
    old.answer(digits()[:1], client="alice")
    rebind(old.ledger, new.binding, "olga")
    with pytest.raises(BindingError):
        old.bind()
    with pytest.raises(BindingError):
        old.answer(digits()[:1], client="alice")
    assert old.ledger.standing("alice").queries == 1
    assert new.answer(digits()[:1], client="alice").honest.all()


def test_a_ledger_that_is_exchanged_is_looked_at_again():
    old, other = load(small_bundle()), load(retrained_bundle())
    for guard in (old, other):
        guard.answer(digits()[:1], client="alice")
    old.ledger = other.ledger
    with pytest.raises(BindingError):
        old.answer(digits()[:1], client="alice")
    old.ledger = MemoryLedger()
    assert old.answer(digits()[:1], client="alice").honest.all()
