"""Revocations that cannot be stored hold all the same, in this process, until they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from queen.errors import KeyStoreError, LedgerError
from queen.ledger.words import Budget
from queen.serve.access.key import Key, mark_revoked
from queen.serve.access.key_store import KeyStore
from queen.serve.telemetry.log import log
from queen.serve.types import ServeError


class KeysWithRevocations:
    """The keys of a store. One that is revoked is dead for this process even if the disk is full.

    `version`, which is asked twice a second, tries again to store what is `pending`: ids and times of revoked keys.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._keys: dict[str, Key] = {}  # as last read
        self.pending: dict[str, float] = {}

    def keys(self) -> dict[str, Key]:
        """All keys by id, those revoked here among the revoked ones."""
        self._keys = self._store.keys()
        pending = self.pending
        return {
            name: replace(key, revoked=pending[name]) if name in pending and key.active else key
            for name, key in self._keys.items()
        }

    def version(self) -> object:
        """Changes whenever any key does."""
        if self.pending:
            self._settle()
        return self._store.version(), tuple(self.pending)

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        return self._store.add(name, groups, admin, budget)

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke keys in the store; where it cannot be written, in this process alone, and `ServeError` 503 says so."""
        try:
            return self._store.revoke(id_or_name)
        except (KeyStoreError, LedgerError) as error:
            revoked = mark_revoked(self._keys, id_or_name)
            why = str(error.__cause__ or error)
            for key in revoked:
                if key.id not in self.pending:
                    log("revocation not stored", level="error", key_id=key.id, name=key.name, why=why)
            self.pending = {key.id: key.revoked or 0.0 for key in revoked} | self.pending
            raise ServeError(
                503,
                f"revoked in this server at once, but NOT STORED ({why}): it is tried again twice a second. Until that "
                "succeeds a restart, and every other server, would accept the key",
                retry_after=1,
            ) from error

    def close(self) -> None:
        """Close the connections, if there are any."""
        self._store.close()

    def _settle(self) -> None:
        for name in list(self.pending):
            try:
                self._store.revoke(name)
            except (KeyStoreError, LedgerError):
                return
            self.pending = {other: at for other, at in self.pending.items() if other != name}
            log("revocation stored", key_id=name)
