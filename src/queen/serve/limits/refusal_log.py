"""Clients that are turned away, in the log: at most one line per second, however many they are."""

from __future__ import annotations

import asyncio
from collections import Counter

from queen.serve.telemetry.log import log

EVERY = 1.0  # seconds between two lines


class RefusalLog:
    """Counts refusals by reason, by who was refused, and by who had most then.

    The first is logged at once, the next ones together.
    """

    def __init__(self, event: str) -> None:
        self._event = event
        self._reasons: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._largest: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, reason: str, who: str, largest: str | None = None) -> None:
        """Count one, and who had most of what there was too little of, if known; must be called on an event loop."""
        if largest is not None:
            self._largest[largest] += 1
        self._reasons[reason] += 1
        self._refused[who] += 1
        if self._timer is None:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if not self._reasons:
            return
        [(most, _)] = self._refused.most_common(1)
        count = self._reasons.total()
        largest = {"largest": self._largest.most_common(1)[0][0]} if self._largest else {}
        log(self._event, level="warning", count=count, reasons=dict(self._reasons), most_from=most, **largest)
        for counter in (self._reasons, self._refused, self._largest):
            counter.clear()
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._write)
