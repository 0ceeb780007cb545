"""The time of a SQLite ledger: this process's clock, but never before what the file says that it was."""

from __future__ import annotations

import sqlite3
import time

from queen.errors import LedgerError
from queen.ledger.clock import STEP, LedgerClock
from queen.ledger.sqlite.events import read_fact, write_fact

TIME = "time"  # the fact that says when budgets that renew were used last
EVERY = 5  # seconds between two writings of it


class FileClock:
    """A clock that a file remembers, so that nobody renews a budget by setting the clock back over a restart.

    The time is written only where budgets renew: all others may have what clock they like. Setting the clock forward
    while nobody runs cannot be told from time that passes.
    """

    def __init__(self, clock: LedgerClock | None) -> None:
        self._clock = clock or LedgerClock()
        self._least = self._written = 0

    def begin(self, db: sqlite3.Connection, path: str, *, any_clock: bool) -> None:
        """Read the time in the file; `LedgerError` if it is ahead of the clock, unless `any_clock` will do."""
        stored, now = int(read_fact(db, TIME) or 0), self._clock.now()
        if stored - now > STEP and not any_clock:
            raise LedgerError(
                f"the clock is {stored - now:,} s behind: ledger '{path}' was used until {show_time(stored)}, and now "
                f"is {show_time(now)}. Set the clock right; or, if it was wrong before, go on with it: "
                f"queen ledger clock '{path}' --accept"
            )
        self._least = 0 if any_clock else stored

    def now(self) -> int:
        """Whole Unix seconds."""
        return max(self._clock.now(), self._least)

    def remember(self, db: sqlite3.Connection, now: int) -> None:
        """Write the time in the transaction that is open, every few seconds; it never goes back."""
        if now >= self._written + EVERY:
            self._written = now
            if now > int(read_fact(db, TIME) or 0):
                write_fact(db, TIME, str(now), replace=True)

    def accept(self, db: sqlite3.Connection) -> int:
        """Begin anew with this process's clock, in the transaction that is open; returns its time."""
        self._least = 0
        write_fact(db, TIME, str(self.now()), replace=True)
        return self.now()


def show_time(at: int) -> str:
    """A time as people write it, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
