"""Amounts that may be used, once or anew in every period: what "2000/day" means, and when it renews.

Windows lie on Unix time: an hour begins at its full hour, a day at 00:00 UTC, a week on Monday at 00:00 UTC, and a
month is 30 days, counted from the beginning of 1970. So everybody's budget renews at the same moment, and within any 24
hours up to twice the amount of a day can be had: before midnight and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DAY = 86400
PERIODS = {"hour": 3600, "day": DAY, "week": 7 * DAY, "month": 30 * DAY}
NAMES = {seconds: name for name, seconds in PERIODS.items()}
MONDAY = 4 * DAY  # Unix time begins on a Thursday; the first Monday is four days later


@dataclass(frozen=True, slots=True)
class Allowance:
    """An `amount` for life, or, where there is a `period` (in seconds), anew in every window of it."""

    amount: float
    period: int | None = None

    def start(self, now: int) -> int | None:
        """When the window began that `now` (Unix seconds) lies in; None for an amount for life."""
        if self.period is None:
            return None
        return now - (now - _offset(self.period)) % self.period

    def renews(self, now: int) -> int | None:
        """When the next window begins; None for an amount for life."""
        if self.period is None:
            return None
        return now - (now - _offset(self.period)) % self.period + self.period

    @property
    def per(self) -> str:
        """The period in words: " per day", or nothing for an amount for life."""
        return "" if self.period is None else f" per {NAMES[self.period]}"


def _offset(period: int) -> int:
    """Where on Unix time a window of this period begins."""
    return MONDAY if period == PERIODS["week"] else 0


def read_allowance(value: float | str) -> Allowance:
    """An allowance from what `check_allowance` returned: a number, or text such as "2000/day"."""
    if not isinstance(value, str):
        return Allowance(value)
    amount, _, period = value.partition("/")
    return Allowance(_number(amount), PERIODS[period])


def check_allowance(value: Any, is_right: Callable[[Any], bool]) -> float | str | None:
    """A number as it is, text as "AMOUNT/PERIOD" in its shortest form; None if it is neither, or the number not right.

    >>> check_allowance(" 2_000 / day", lambda number: number >= 0), check_allowance("0.20/week", lambda number: True)
    ('2000/day', '0.2/week')
    """
    if not isinstance(value, str):
        return value if is_right(value) else None
    text, separator, period = (part.strip() for part in value.partition("/"))
    try:
        amount = _number(text)
    except ValueError:
        return None
    if not separator or period not in PERIODS or not is_right(amount):
        return None
    return f"{_shortest(amount)}/{period}"


def read_amount(text: str) -> float | str:
    """What a person typed, as an option takes it: a number where it is one, else the text itself, to be checked there.

    >>> read_amount("2000"), read_amount("0.2"), read_amount("2000/day")
    (2000, 0.2, '2000/day')
    """
    try:
        return _number(text)
    except ValueError:
        return text


def _number(text: str) -> float:
    """A whole number if it looks like one, else a float; `ValueError` if it is none."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _shortest(amount: float) -> str:
    """A number in digits, without a point where none is needed; `_number` reads it back to the last bit."""
    return repr(amount).removesuffix(".0")
