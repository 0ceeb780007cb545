"""A server that takes every body and every connection that comes, and evicts nobody."""

from __future__ import annotations

from queen.cli import main
from queen.serve.limits.connections import Connections, Crowd
from queen.serve.limits.grpc_connections import GrpcConnections
from queen.serve.limits.memory import MemoryAccount


def has_room(self: MemoryAccount, client: str, more: int) -> bool:
    """There is always room."""
    return True


def make_room(self: Connections, crowd: Crowd) -> bool:
    """First come, first served."""
    return self.total < self._most


if __name__ == "__main__":
    MemoryAccount._has_room = MemoryAccount.has_share = has_room  # type: ignore[method-assign]
    Connections._make_room = make_room  # type: ignore[method-assign]
    GrpcConnections.close_some = lambda self: []  # type: ignore[method-assign]
    main()
