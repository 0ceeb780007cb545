"""A server that notes no end of a budget, and forgets at its end what it has not posted yet."""

from __future__ import annotations

from queen.cli import main
from queen.ledger.state import ScopeState
from queen.serve.telemetry.webhook import Webhook


def no_mark(self: ScopeState, *numbers: float) -> str:
    """Nothing ever comes to its end."""
    return ""


def begin(self: Webhook) -> None:
    """All that is in the ledger is old news."""
    events = self._ledger.events()
    self._ledger.set_fact(self._cursor, str(events[-1].id if events else 0))


if __name__ == "__main__":
    ScopeState.extra_mark = ScopeState.class_mark = no_mark  # type: ignore[method-assign, assignment]
    Webhook.begin = begin  # type: ignore[method-assign]
    main()
