"""How far the wall clock is believed when it says that recorded queries are old.

A clock that jumps ahead by weeks makes everything look old. Nothing tells a jump from a time in which nothing was
recorded, except that a clock which goes on steadily for a day is probably right.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from queen.ledger.clock import STEP

STEADY = 86400.0  # seconds without a jump after which the clock is believed; a longer silence of the log is a jump too


class SteadyClock:
    """The wall clock, and for how long it has gone like the monotonic clock, which nobody can set."""

    def __init__(self) -> None:
        self._offset, self._since = self._look()

    def now(self) -> float:
        """Unix seconds, by the wall clock."""
        return time.time()

    def is_believed(self, recorded: Iterable[float]) -> bool:
        """Whether there was no jump for a day, as this process or the times of what was `recorded` show."""
        offset, monotonic = self._look()
        if abs(offset - self._offset) > STEP:
            self._since = monotonic
        self._offset = offset
        return monotonic - self._since >= STEADY or _stretch(recorded, offset + monotonic) >= STEADY

    def _look(self) -> tuple[float, float]:
        """By how much the wall clock is ahead of the monotonic clock, and the latter."""
        monotonic = time.monotonic()
        return time.time() - monotonic, monotonic


def _stretch(recorded: Iterable[float], now: float) -> float:
    """Seconds up to now in which something was recorded at least every day."""
    start = now
    for at in sorted((at for at in recorded if at <= now), reverse=True):
        if start - at > STEADY:
            break
        start = at
    return now - start
