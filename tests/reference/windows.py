"""Budgets that renew, read aloud: every use is remembered with its time, and windows come from a calendar."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from queen.ledger.usage import Usage

HOUR, LONGEST = 3600, 24 * 100  # hours that are searched for the one in which all has renewed
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parts(allowance: float | str) -> tuple[float, str]:
    """Amount and period; no period for an amount for life."""
    if not isinstance(allowance, str):
        return allowance, ""
    amount, period = allowance.split("/")
    return float(amount), period


def window(period: str, now: int) -> int:
    """When the window began that a time lies in."""
    time = EPOCH + timedelta(seconds=now)
    hour = time.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    month = EPOCH + timedelta(days=(day - EPOCH).days // 30 * 30)
    week = day - timedelta(days=day.weekday())
    return int(({"hour": hour, "day": day, "week": week, "month": month}[period] - EPOCH).total_seconds())


@dataclass
class Uses:
    """All uses of one budget: when, in the window that began when, how much. A clock that goes back stands still."""

    uses: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self, period: str, amount: float, now: int) -> None:
        last = self.uses[-1][0] if self.uses else 0
        self.uses.append((max(last, now), window(period, now), amount))

    def count(self, period: str, now: int) -> float:
        """What counts: nothing, if the window began after the last use; else all since a window began before a use."""
        if not self.uses or window(period, now) > self.uses[-1][0]:
            return 0.0
        return self.usage().amount

    def usage(self) -> Usage:
        """What counted at the last use, and when that was."""
        if not self.uses:
            return Usage()
        first = len(self.uses) - 1
        while first > 0 and self.uses[first][1] <= self.uses[first - 1][0]:
            first -= 1
        total = 0.0
        for _, _, amount in self.uses[first:]:
            total += amount
        return Usage(total, self.uses[-1][0])
