"""A server that remembers nothing of its ledger: whatever the ledger says now is believed."""

from __future__ import annotations

from queen.cli import main
from queen.ledger import RedisLedger
from queen.ledger.sqlite.watch import FileWatch
from queen.ledger.witness import Witness


def believe(*anything: object) -> None:
    """No complaint."""


if __name__ == "__main__":
    Witness.meet = Witness.compare = believe  # type: ignore[method-assign,assignment]
    FileWatch.refuse_another_file = FileWatch.fold_log = believe  # type: ignore[method-assign]
    RedisLedger.verify = believe  # type: ignore[method-assign]
    main()
