"""A server with one queue for all clients: who comes while somebody else fills it is refused."""

from __future__ import annotations

from collections.abc import Sequence

from queen.cli import main
from queen.serve.queue import request_queue
from queen.serve.queue.fair_queue import FairQueue, Part


class OneQueue(FairQueue[Part]):
    """All clients stand in one line, with one limit for all of them together."""

    def rows_of(self, client: str) -> int:
        """All that wait, whoever asks."""
        return self.rows

    def push(self, client: str, parts: Sequence[Part], *, accused: bool = False) -> None:
        """Queue up behind everybody."""
        super().push("all", parts)


if __name__ == "__main__":
    request_queue.FairQueue = OneQueue
    main()
