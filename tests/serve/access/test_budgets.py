"""Budgets that come with keys are in force before the keys are."""

from __future__ import annotations

from queen.ledger import Budget, MemoryLedger
from queen.serve.access.budgets import KeysWithBudgets
from queen.serve.access.key_store import FileKeys
from tests.support.failing_ledger import FailingFor


def test_budgets_of_keys_are_in_force_before_the_keys_are(tmp_path):
    store, ledger = FileKeys(tmp_path), FailingFor({"adam"})
    store.add("adam", budget=Budget(extra_answers=1))
    store.add("zoe", budget=Budget(extra_answers=0))
    store.add("plain")
    keys = KeysWithBudgets(store, ledger)
    assert sorted(key.name for key in keys.keys().values()) == ["adam", "plain", "zoe"]
    assert ledger.standing("zoe").budget == Budget(extra_answers=0)  # one client's shard does not stop another's budget
    assert keys.pending == {"adam"}
    ledger.broken.clear()
    keys.settle()
    assert keys.pending == frozenset()
    assert ledger.standing("adam").budget == Budget(extra_answers=1)


def test_the_newest_keys_budget_counts_unless_an_operator_has_set_one(tmp_path):
    store, ledger = FileKeys(tmp_path), MemoryLedger()
    keys = KeysWithBudgets(store, ledger)
    for client in ("a", "b"):
        store.add(client, budget=Budget(extra_answers=1000))
    keys.keys()
    ledger.set_budget("b", Budget(extra_answers=7), "boss")
    for client in ("a", "b"):
        store.add(client, budget=Budget(extra_answers=5))
    keys.keys()
    assert ledger.standing("a").budget == Budget(extra_answers=5)
    assert ledger.standing("b").budget == Budget(extra_answers=7)
