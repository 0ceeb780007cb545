"""A server that takes any ledger for its own, as all did before ledgers were bound: the points of two maps mix."""

from __future__ import annotations

from queen.cli import main
from queen.guard import Guard


def bind(self: Guard) -> bool:
    """Look at nothing."""
    self._bound_ledger = self.ledger
    return False


if __name__ == "__main__":
    Guard.bind = bind  # type: ignore[method-assign]
    main()
