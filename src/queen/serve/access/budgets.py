"""Budgets that come with keys: they are in the ledger before the key opens anything."""

from __future__ import annotations

from collections.abc import Iterable

from queen.errors import LedgerError
from queen.ledger import Budget, Ledger
from queen.serve.access.key import Key, budgets
from queen.serve.access.key_store import KeySource


class KeysWithBudgets:
    """The keys of a store, read only after the budgets of their clients have been written to the ledger.

    A client whose budget the ledger could not take is in `pending` until `settle` succeeds. A budget that an operator
    has set in the meantime stays.
    """

    def __init__(self, store: KeySource, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger
        self._budgets: dict[str, Budget] = {}  # as the keys say
        self._written: dict[str, Budget] = {}  # as this process has put them into the ledger
        self.pending: frozenset[str] = frozenset()

    def keys(self) -> dict[str, Key]:
        """All keys by id."""
        keys = self._store.keys()
        self._budgets = budgets(keys)
        self._settle(self._budgets)
        return keys

    def version(self) -> object:
        """Changes whenever any key does."""
        return self._store.version()

    def settle(self) -> None:
        """Try again to write the budgets that are not in the ledger yet."""
        self._settle([client for client in self._budgets if client in self.pending])

    def _settle(self, clients: Iterable[str]) -> None:
        self.pending = frozenset(client for client in clients if not self._write(client, self._budgets[client]))

    def _write(self, client: str, budget: Budget) -> bool:
        """Put a budget into the ledger, unless an operator has set another one; whether the ledger could be reached."""
        before = self._written.get(client)
        if before == budget:
            return True
        try:
            if self._ledger.standing(client).budget in (None, before):
                self._ledger.set_budget(client, budget, "keys")
        except LedgerError:
            return False
        self._written[client] = budget
        return True
