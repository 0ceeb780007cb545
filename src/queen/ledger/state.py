"""What a Python ledger remembers of one client or group, in memory or read from its file."""

from __future__ import annotations

from math import floor

import numpy as np

from queen.core.sensitivity import Floats, query_area
from queen.ledger.usage import UNUSED, Usage
from queen.ledger.words import LOW, Budget, Standing
from queen.options import Limits
from queen.sentinel.bets import Test
from queen.sentinel.sketch import Memory
from queen.sentinel.wealth import Winnings

TESTS = 2  # whose winnings are remembered: while servers change to another calibration, both go on
OUTLASTED = 16  # tests that may come and go while a richer one is not used; the next takes the place of that one
STRIDE = 1 << 26  # squares are numbered column * STRIDE + line, exact for every radius that Limits allows


class ClassState:
    """One class of one scope: CQS, what of it a renewing limit counts, the records, and a grid that finds near ones.

    A square of the grid is a little wider than twice the radius and lists every record within one radius of it, along x
    and along y, so a query looks into one square only. Records are at least one radius apart, so that list is short.
    """

    __slots__ = ("cqs", "radius", "records", "side", "squares", "usage")

    def __init__(self) -> None:
        self.cqs = 0.0
        self.usage = UNUSED
        self.records: list[tuple[float, float]] = []
        self.radius = 0.0
        self.side = 0.0
        self.squares: dict[int, tuple[tuple[float, float], ...]] = {}  # tuples: the garbage collector skips them

    def regrid(self, radius: float) -> None:
        """Arrange the records for another radius."""
        self.radius, self.squares = radius, {}
        self.side = 2.0 * radius * (1.0 + 1e-9)  # a hair more, so that a record is near four squares at most
        for x, y in self.records:
            self._place(x, y)

    def covered(self, start: int | None) -> float:
        """The coverage that counts: all (None), or that of the window that began at `start`."""
        return self.cqs if start is None else self.usage.since(start)

    def letter_of(self, x: float, y: float, *, is_spent: bool) -> str:
        """The letter of a point, before anything is recorded."""
        if not x * x + y * y < 1.0:
            return "A"
        rho_squared, side = self.radius * self.radius, self.side
        for rx, ry in self.squares.get(floor(x / side) * STRIDE + floor(y / side), ()):
            dx, dy = x - rx, y - ry
            if dx * dx + dy * dy < rho_squared:
                return "D"
        return "B" if is_spent else "C"

    def add(self, x: float, y: float) -> float:
        """Record a point; returns its area, which CQS gains."""
        area = query_area(x, y, self.radius)
        self.cqs += area
        self.records.append((x, y))
        self._place(x, y)
        return area

    def _place(self, x: float, y: float) -> None:
        """List a record in the squares that it is near."""
        point, radius, side, squares = (x, y), self.radius, self.side, self.squares
        left, right = floor((x - radius) / side) * STRIDE, floor((x + radius) / side) * STRIDE
        low, high = floor((y - radius) / side), floor((y + radius) / side)
        for square in {left + low, left + high, right + low, right + high}:
            squares[square] = (*squares.get(square, ()), point)


class ScopeState:
    """One client or group: its classes, and under the sentinel its winnings, extra answers and memory of queries.

    `winnings` are by the test's id, the one used last at the end; `outlasted` counts the tests that have come and gone
    since the other one was used. `homes` holds, for a client, the first groups of every kind that it asked from and
    whose alarms may be enforced on it, `HOMES` at most: the alarms of others are not enforced, so that moving between
    groups spends no more than one share of alpha. One home would spend no more either, but then a first query from
    elsewhere would free a client from the alarms of the group that it really belongs to.
    """

    __slots__ = (
        "after_alarm", "alarmed", "allowed", "budget", "classes", "extra", "extra_usage", "homes", "id", "memory",
        "outlasted", "queries", "slots", "winnings",
    )  # fmt: skip

    def __init__(self) -> None:
        self.id: int | None = None  # for a store that numbers its scopes
        self.slots: list[int | None] = [None] * TESTS  # likewise, in which of its places the winnings of which test lie
        self.classes: dict[int, ClassState] = {}
        self.queries = 0
        self.winnings: dict[int, Winnings] = {}
        self.outlasted = 0
        self.homes: dict[str, list[str]] = {}  # by kind
        self.extra = 0  # extra answers given
        self.extra_usage = UNUSED  # those that a renewing limit counts
        self.alarmed = False
        self.after_alarm = 0  # queries while an alarm with consequences stood, the one that raised it included
        self.allowed = False
        self.budget: Budget | None = None
        self.memory = Memory()

    def winnings_in(self, test: Test) -> Winnings:
        """The winnings in a test, which becomes the one used last.

        A new test takes the place of the poorer one, or of the one used last where both are equal: else three tests in
        turn would begin anew each time, and a client that is sent to many servers would never be accused. A test that
        was not used while many others came and went gives way too; else two more would replace each other for ever.
        """
        if self.winnings and next(reversed(self.winnings)) == test.id:
            return self.winnings[test.id]
        one = self.winnings.pop(test.id, None)
        if one is not None or len(self.winnings) < TESTS:
            self.outlasted = 0
        else:
            self._make_room()
        self.winnings[test.id] = one or Winnings.empty(test.scores)
        return self.winnings[test.id]

    def _make_room(self) -> None:
        """Forget one of the two tests."""
        older, newer = self.winnings
        if self.winnings[newer].wealth > self.winnings[older].wealth or self.outlasted == OUTLASTED:
            del self.winnings[older]
            self.outlasted = 0
        else:
            del self.winnings[newer]
            self.outlasted += 1

    def class_state(self, label: int, limits: Limits) -> ClassState:
        """The state of a class, its grid arranged for the radius in `limits`."""
        state = self.classes.get(label)
        if state is None:
            state = self.classes[label] = ClassState()
        radius = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
        if state.radius != radius:
            state.regrid(radius)
        return state

    def extra_used(self, start: int | None) -> int:
        """The extra answers that count: all (None), or those of the window that began at `start`."""
        return self.extra if start is None else int(self.extra_usage.since(start))

    def extra_mark(self, limit: float, start: int | None = None) -> str:
        """The notice due after one more extra answer, see `Notice`; "" if none is."""
        used = self.extra_used(start)
        if used == limit:
            return "budget spent"
        return "budget low" if used >= LOW * limit > used - 1 else ""

    def class_mark(self, label: int, before: float, threshold: float, start: int | None = None) -> str:
        """The notice due after a record in a class of which `before` counted; "" where another class came first."""
        covered, low = self.classes[label].covered(start), LOW * threshold
        others = (one.covered(start) for other, one in self.classes.items() if other != label)
        if covered > threshold >= before:
            return "" if any(other > threshold for other in others) else "class spent"
        if covered >= low > before:
            return "" if any(other >= low for other in others) else "class low"
        return ""

    def obey(self, order: str, budget: Budget | None) -> None:
        """Carry out an operator's order, as `operate.lua` does; a pardon leaves coverage, records and memory alone."""
        if order == "pardon":
            self.alarmed, self.after_alarm = False, 0
            self.winnings, self.outlasted, self.homes = {}, 0, {}
        elif order == "budget":
            self.budget = budget
        else:
            self.allowed = order == "allow"

    def not_after(self, now: int) -> None:
        """Let no use of a renewing budget lie after now; what was used still counts in the present window."""
        self.extra_usage = self.extra_usage.not_after(now)
        for of_class in self.classes.values():
            of_class.usage = of_class.usage.not_after(now)

    @property
    def wealth(self) -> float:
        """Wealth as operators see it, in the test where it is highest."""
        return max((one.wealth for one in self.winnings.values()), default=0.0)

    def points(self) -> dict[int, Floats]:
        """The recorded points (m, 2) of every class with a record, oldest first."""
        return {label: np.array(state.records) for label, state in sorted(self.classes.items()) if state.records}

    def coverage(self) -> dict[int, float]:
        """CQS of every class with a record."""
        return {label: state.cqs for label, state in sorted(self.classes.items()) if state.records}

    def class_usage(self) -> dict[int, Usage]:
        """What renewing limits count, of every class in which they count something."""
        return {label: state.usage for label, state in sorted(self.classes.items()) if state.usage is not UNUSED}

    def standing(self, name: str, *, group: bool) -> Standing:
        """Where it stands, as operators see it."""
        return Standing(
            name,
            group,
            self.queries,
            self.wealth,
            self.alarmed,
            self.allowed,
            self.extra,
            self.after_alarm,
            self.budget,
            self.coverage(),
            self.extra_usage,
            self.class_usage(),
        )
