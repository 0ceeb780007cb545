"""What one row costs in one scope, or why it is denied there, and what of that is noted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from queen.allowance import Allowance
from queen.ledger.rows import Rows, Scope
from queen.ledger.state import ScopeState
from queen.ledger.words import Denial, Notice
from queen.options import Limits

NEVER = Allowance(0)  # no extra answers at all: no window brings some


@dataclass
class Journal:
    """What `decide` changed.

    Records (state, label, x, y, area) in order; who placed bets, and in which classes; notices, each with its row; and
    the states whose usage of something that renews has changed, with the label of the class (None: extra answers).
    `renews` says that some limit did, so that the time of the batch matters.
    """

    records: list[tuple[ScopeState, int, float, float, float]] = field(default_factory=list)
    bets: list[tuple[ScopeState, set[int]]] = field(default_factory=list)
    notices: list[tuple[int, Notice]] = field(default_factory=list)
    usages: list[tuple[ScopeState, int | None]] = field(default_factory=list)
    renews: bool = False


@dataclass(slots=True)
class Seat:
    """A client's place in one of its scopes: the state to charge, under which limits, and whether its alarm counts.

    `threshold` and `most_extra` are the numbers in the limits; `class_start` and `extra_start` are when the present
    windows of what renews began, None for what does not.
    """

    scope: Scope
    state: ScopeState
    limits: Limits
    enforce: bool
    now: int
    threshold: float = field(init=False)
    class_start: int | None = field(init=False)
    most_extra: float = field(init=False)
    extra_start: int | None = field(init=False)

    def __post_init__(self) -> None:
        of_class, extra = self.limits.class_allowance, self.limits.extra_allowance
        self.threshold, self.class_start = of_class.amount, of_class.start(self.now)
        self.most_extra, self.extra_start = extra.amount, extra.start(self.now)

    @property
    def renews(self) -> bool:
        """Whether some of its limits renew."""
        return self.class_start is not None or self.extra_start is not None


def charge_row(rows: Rows, row: int, seat: Seat, letter: str, journal: Journal) -> None:
    """Record a row, or count one extra answer; and note whether a budget comes to its end by it."""
    state, label = seat.state, rows.labels[row]
    if letter == "C":
        before = state.classes[label].covered(seat.class_start)
        record(rows, row, seat, journal)
        what = state.class_mark(label, before, seat.threshold, seat.class_start)
    else:
        state.extra += 1
        if seat.extra_start is not None:
            state.extra_usage = state.extra_usage.plus(1.0, seat.extra_start, seat.now)
            journal.usages.append((state, None))
        what = state.extra_mark(seat.most_extra, seat.extra_start)
    if what and not state.allowed:
        note(rows, row, seat, what, journal)


def record(rows: Rows, row: int, seat: Seat, journal: Journal) -> None:
    """Record a row, and count its area where the class's budget renews."""
    state, label, x, y = seat.state, rows.labels[row], rows.x[row], rows.y[row]
    of_class = state.classes[label]
    area = of_class.add(x, y)
    journal.records.append((state, label, x, y, area))
    if seat.class_start is not None:
        of_class.usage = of_class.usage.plus(area, seat.class_start, seat.now)
        journal.usages.append((state, label))


def deny(seat: Seat) -> Denial:
    """Who denies a row, and when all that is spent there will have renewed.

    Not only what this row lacks: what is said about it must not depend on the row, whose class would show otherwise.
    """
    state, scope = seat.state, seat.scope
    used, most = state.extra_used(seat.extra_start), int(seat.most_extra)
    if not seat.renews:
        return Denial(scope.name, scope.group, used, most)
    waits = []
    if used >= most:
        of_extra = seat.limits.extra_allowance if most else NEVER
        waits.append(of_extra.renews(max(seat.now, state.extra_usage.at)))
    spent = [one.usage.at for one in state.classes.values() if one.covered(seat.class_start) > seat.threshold]
    if spent:
        waits.append(seat.limits.class_allowance.renews(max(seat.now, *spent)))
    renews = max((wait for wait in waits if wait is not None), default=None)
    return Denial(scope.name, scope.group, used, most, None if None in waits else renews, seat.now)


def note(rows: Rows, row: int, seat: Seat, what: str, journal: Journal) -> None:
    """Note how the scope stands; its wealth only of an alarm, since the bets on later rows of a batch may be placed."""
    standing = seat.state.standing(seat.scope.name, group=seat.scope.group)
    if what != "alarm":
        standing = replace(standing, wealth=0.0)
    journal.notices.append((row, Notice(what, standing, rows.clients[rows.owner[row]])))
