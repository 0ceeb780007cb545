"""A server with one queue for all clients: who comes while somebody else fills it is refused."""

from __future__ import annotations

from collections.abc import Sequence

from queen.cli import main
from queen.serve import batcher
from queen.serve.fair_queue import FairQueue, Part


class OneQueue(FairQueue[Part]):
    """All clients stand in one line, and the newest request of all is the one that must leave."""

    def has_room(self, client: str) -> bool:
        """Whoever comes, the line has no limit but that for all."""
        return True

    def rows_ahead(self, client: str) -> int:
        """All that wait."""
        return self.rows

    def push(self, client: str, parts: Sequence[Part], *, accused: bool = False) -> None:
        """Queue up behind everybody."""
        super().push("all", parts)


if __name__ == "__main__":
    batcher.FairQueue = OneQueue
    main()
