"""The time by which budgets renew in a ledger that this process owns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LOGGER = logging.getLogger(__name__)
STEP = 60.0  # seconds between wall clock and monotonic clock that are a step, not drift


class LedgerClock:
    """The wall clock as it was at the start, going on with the monotonic clock, which nobody can set.

    So setting the wall clock renews no budget while the process runs; it is logged, once for each step.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset = self._logged = wall() - monotonic()

    def now(self) -> int:
        """Whole Unix seconds."""
        monotonic = self._monotonic()
        offset = self._wall() - monotonic
        if abs(offset - self._logged) > STEP:
            LOGGER.warning(
                "the wall clock was set %s by %.0f s: budgets renew as if it had not been, until the next start",
                "forward" if offset > self._logged else "back",
                abs(offset - self._logged),
            )
            self._logged = offset
        return int(monotonic + self._offset)
