"""Budgets that come with keys: in the ledger before the key opens anything."""

from __future__ import annotations

from collections.abc import Sequence

from queen.errors import LedgerError
from queen.ledger import Budget, Ledger
from queen.serve.access.key_store import Key, KeyStore, budgets


class GrantedKeys:
    """A key store whose keys are handed out once the ledger knows the budgets of their clients.

    Where the ledger fails, the client is in `pending` until `settle` succeeds. A budget that an operator has set
    since then stays.
    """

    def __init__(self, store: KeyStore, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger
        self._given: dict[str, Budget] = {}
        self._wanted: dict[str, Budget] = {}
        self.pending: frozenset[str] = frozenset()

    def keys(self) -> dict[str, Key]:
        """All keys by id."""
        found = self._store.keys()
        self._wanted = budgets(found)
        self.settle(every=True)
        return found

    def settle(self, *, every: bool = False) -> None:
        """Try again to write the budgets that are not in the ledger yet."""
        clients = [name for name in self._wanted if every or name in self.pending]
        self.pending = frozenset(name for name in clients if not self._is_settled(name, self._wanted[name]))

    def _is_settled(self, client: str, budget: Budget) -> bool:
        before = self._given.get(client)
        if before == budget:
            return True
        try:
            if self._ledger.standing(client).budget in (None, before):
                self._ledger.set_budget(client, budget, "keys")
        except LedgerError:
            return False
        self._given[client] = budget
        return True

    def version(self) -> object:
        """Changes whenever any key does."""
        return self._store.version()

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """A new key; see `KeyStore`."""
        return self._store.add(name, groups, admin, budget)

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke a key; see `KeyStore`."""
        return self._store.revoke(id_or_name)

    def close(self) -> None:
        """Give the store back."""
        self._store.close()
