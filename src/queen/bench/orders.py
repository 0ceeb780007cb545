"""Many simulated clients from few images: the same queries in any order, judged by a real ledger, measured once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from queen.errors import OptionError
from queen.guard import Guard
from queen.ledger import MemoryLedger
from queen.ledger.rows import make_rows
from queen.sentinel.bets import Bets


class OrderReplay:
    """Images that a sentinel has measured once, to be sent by any number of simulated clients."""

    def __init__(self, guard: Guard, x: Tensor) -> None:
        parts = [guard.measure(part) for part in x.split(256)]  # type: ignore[no-untyped-call]
        bets = [part.bets for part in parts if part.bets is not None]
        if not bets:
            raise OptionError("only a guard with policy 'sentinel' has evidence to replay")
        self.bets = Bets.join(bets)
        self._limits = guard.bundle.limits
        self.labels: NDArray[np.int64] = np.concatenate([part.labels for part in parts])
        self._points = np.concatenate([part.points for part in parts])

    def alarm_at(self, order: ArrayLike) -> int | None:
        """The query at which a new client who sends the images in this order is accused; None if it never is."""
        order = np.asarray(order)
        bets = self.bets.take(order.tolist())
        rows = make_rows(("replay",), None, self.labels[order], self._points[order], self._limits, bets=bets)
        alarmed = MemoryLedger().judge_rows(rows).alarmed
        return int(alarmed.argmax()) + 1 if alarmed.any() else None

    def accused(self, orders: Iterable[ArrayLike]) -> int:
        """How many of these clients are accused."""
        return sum(self.alarm_at(order) is not None for order in orders)

    def oddest(self, count: int) -> NDArray[np.intp]:
        """The images whose bets win most: whoever sends them again and again would be accused first."""
        gain = (self.bets.bet / np.maximum(self.bets.total, 1) * self.bets.size).sum(1)
        return np.argsort(gain)[::-1][:count]
