"""A ledger that fails on demand."""

from __future__ import annotations

from queen.errors import LedgerError
from queen.ledger import MemoryLedger, Standing


class FailingFor(MemoryLedger):
    """Fails for these clients, like a cluster one of whose shards is down."""

    def __init__(self, clients: set[str]) -> None:
        super().__init__()
        self.broken = clients

    def standing(self, name: str, *, group: bool = False) -> Standing:
        if name in self.broken:
            raise LedgerError("shard down")
        return super().standing(name, group=group)
