"""What was used of a budget that renews, and since when that counts no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """The `amount` that was used since the budget last renewed, and the ledger's time `at` which the last of it was.

    It counts until a window begins after that time. So, whatever the period is and however it was changed, at least
    all that was used in the present window counts; and where a clock is behind the one that was used before, the later
    time stays: nothing is given back early.
    """

    amount: float = 0.0
    at: int = 0

    def since(self, start: int) -> float:
        """What counts in the window that began then."""
        return 0.0 if start > self.at else self.amount

    def plus(self, amount: float, start: int, now: int) -> Usage:
        """With so much more used now, in the window that began at `start`."""
        return Usage(self.since(start) + amount, max(self.at, now))

    def not_after(self, now: int) -> Usage:
        """The same, used now at the latest: all of it still counts in the present window."""
        return self if self.at <= now else Usage(self.amount, now)


UNUSED = Usage()
