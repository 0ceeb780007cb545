"""The protocol every ledger follows, and the words it speaks: judgements, standings, budgets and events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queen.core.sensitivity import Floats
from queen.errors import LimitsError, OptionError
from queen.ledger.rows import Rows, check_client, make_rows
from queen.ledger.witness.witness import ACCEPTED, ID, is_id, new_id
from queen.options import Limits
from queen.sentinel.bets import Test
from queen.types import Verdict

BINDING = "binding"  # the fact that says which bundles a ledger is for
UNFINISHED = "unfinished "  # what it begins with while coverage is being forgotten
LETTERS = {verdict.value: verdict for verdict in Verdict}
NOTICES = ("alarm", "budget low", "budget spent", "class low", "class spent")  # events that queries bring about


@dataclass(frozen=True)
class Judgement:
    """What the ledger decided about every row: a letter, whether no budget is left for it, whether it is alarmed.

    Without bets `spent` says that the row's class was spent before it came; with them, that no budget is left for it.
    `trusted` rows are those of clients on the allow-list. `failed` rows may not be answered: part of the store failed,
    so it is not certain that they are on record; their letter is B and they count as spent. (If all failed, the ledger
    raises `LedgerError` instead.) Of alarmed rows, `repeated` ones were answered honestly before the alarm and are so
    again; `cut_off` ones get no answer, whatever others get: the client has asked too much since, or it was a group
    that was accused, or one of its groups does not remember what the client's own scope would answer again.
    `denials` says whose budget did not allow an answer, by row; `notices` what operators should hear of, in order.
    """

    letters: str
    spent: NDArray[np.bool_]
    alarmed: NDArray[np.bool_]
    trusted: NDArray[np.bool_]
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    repeated: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    cut_off: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    denials: Mapping[int, Denial] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    def __post_init__(self) -> None:
        for name in ("failed", "repeated", "cut_off"):  # not given: none
            if len(getattr(self, name)) != len(self.letters):
                object.__setattr__(self, name, np.zeros(len(self.letters), np.bool_))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The letters as `Verdict`s."""
        return tuple(LETTERS[letter] for letter in self.letters)


@dataclass(frozen=True)
class Denial:
    """Whose budget did not allow an answer, and how many of its extra answers are used, of how many.

    If some are left, it was a class that is spent. Which one is not said: that would be the label of the query.
    """

    name: str
    group: bool
    used: int
    limit: int


@dataclass(frozen=True)
class Notice:
    """What a query has brought about, one of `NOTICES`; how the client or group stood then, and the client who asked.

    Under the sentinel a budget is low when 4/5 of the extra answers are used, and spent when all are. A class is low,
    or spent, when its coverage comes to 4/5 of the threshold, or beyond it; only the first class of a client or group
    is noted. Each is noted when the mark is passed, so once, unless an operator moves the mark.
    """

    what: str
    standing: Standing
    client: str


@dataclass(frozen=True)
class Event:
    """Something an operator should know: a notice of the ledger, or what an operator did.

    `what` is one of `NOTICES`, or pardon, allow, disallow, budget, or, of the whole ledger, accept (of lost state) or
    rebind; `name` is the client, group or bundle it is about, and `client` the one whose query brought it about.
    `wealth` is that of its best score in its best test (it accuses at the bar, see `Test.bar`; 0 where it is about a
    budget), `coverage` is CQS by class. The numbers are from that query, or from just before the operator acted.
    """

    id: int
    what: str
    name: str
    group: bool
    client: str
    wealth: float
    queries: int
    coverage: Mapping[int, float]
    actor: str
    at: float
    acknowledged: str | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What an operator gives one client instead of the guard's limits; None leaves the guard's."""

    threshold: float | None = None
    extra_answers: int | None = None

    def __post_init__(self) -> None:
        plain = self.over(Limits())  # raises if a number is wrong, and turns all into plain Python numbers
        for name in ("threshold", "extra_answers"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, getattr(plain, name))

    def over(self, limits: Limits) -> Limits:
        """The limits, with the numbers of this budget where it has some."""
        return replace(limits, **{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class Standing:
    """Where a client or group stands; `queries` counts all that were charged to it, under any policy.

    Wealth and extra answers are counted under the sentinel only. `after_alarm` counts the queries since the alarm, the
    one that raised it included, as long as the alarm has consequences.
    """

    name: str
    group: bool
    queries: int = 0
    wealth: float = 0.0
    alarmed: bool = False
    allowed: bool = False
    extra_answers: int = 0
    after_alarm: int = 0
    budget: Budget | None = None  # its own, if an operator has given it one
    coverage: Mapping[int, float] = field(default_factory=dict)

    @property
    def on_record(self) -> bool:
        """Whether the ledger knows this client or group: it asked, or an operator allowed it or gave it a budget.

        All other numbers follow from queries, and a pardon alone puts nobody on record.
        """
        return bool(self.queries or self.allowed or self.budget)


class Ledger(Protocol):
    """Judges rows in arrival order and remembers them; several clients may mix in one call."""

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge all rows and record the fresh ones, or raise `LedgerError`: then nobody may be answered.

        A row is judged in its client's own scope and then in its groups', in order of kind. Each decides and charges by
        itself; what one denies is not passed on, and what a trusted client asks is charged to no group.
        """
        ...

    def number_of(self, test: Test, *, claim: bool = True) -> int:
        """The number of a test among those of its account, from 1, in the order in which the ledger met them.

        A new one gets the next number, as it does when its bets are judged for the first time; unless `claim`, nothing
        is written and the answer is the number that it would get.
        """
        ...

    def judge(self, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """The one-client case: labels (n,), points (n, 2) relative to the class disc."""
        ...

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class in which this client has records."""
        ...

    def records(self, client: str) -> dict[int, Floats]:
        """The recorded points (m, 2) of every class in which this client has records, oldest first."""
        ...

    def clients(self) -> Iterable[str]:
        """The names of all clients on record (see `Standing.on_record`), sorted."""
        ...

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client (or group) stands; one that is not on record has `Standing(name, group)`."""
        ...

    def standings(self) -> list[Standing]:
        """Where all clients and groups on record stand, the highest wealth first."""
        ...

    def each_standing(self) -> Iterator[Standing]:
        """The same in no order, one after the other, for callers that cannot hold a million of them.

        Each is as it was when it was read, and one may come twice (a Redis cluster may move it meanwhile).
        """
        ...

    def events(self, *, after: int = 0) -> list[Event]:
        """Notices and what operators did, oldest first; those with a higher number than `after`."""
        ...

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has read an event."""
        ...

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm, what was counted since, the wealth in every test and the homes of a client (or group).

        Coverage, records and the memory of queries stay.
        """
        ...

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list (or take it off): always answered honestly, and not charged to its groups."""
        ...

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client its own budget, or (None) the guard's limits again."""
        ...

    def fact(self, name: str) -> str | None:
        """Something that is true of the whole ledger, by name: whose it is, how old; None if nobody has said it."""
        ...

    def set_fact(self, name: str, value: str, *, replace: bool = True) -> str:
        """Say something of the whole ledger; unless it may `replace` it, only if nobody has. What holds is returned."""
        ...

    def accept(self, lost: str, actor: str) -> str:
        """Go on although state was lost: whoever knew this ledger as `lost` believes it again. Returns its new id."""
        ...

    def rebind(self, binding: str, actor: str, *, name: str, forget_coverage: bool) -> None:
        """Replace the fact `binding`, what the ledger is for, and log that `actor` did so for the bundle called `name`.

        With `forget_coverage`, coverage and records of all clients and groups go; all else stays: alarms, evidence,
        budgets, the allow-list, events, counts and the memory of queries. Where this takes several steps, the fact
        begins with `UNFINISHED` until the last; doing it again goes on from there.
        """
        ...

    def check(self) -> None:
        """Raise `LedgerError` if nothing can be written now, so that a server finds out before a client asks."""
        ...

    def verify(self) -> None:
        """Raise `LedgerError` if this ledger has lost state, or would not keep it; quick, and writes nothing."""
        ...

    def close(self) -> None:
        """Give back files and connections."""
        ...


class LedgerBase:
    """The methods of `Ledger` that follow from its others, and from `_operate`, which carries out operators' orders."""

    def judge(self: Ledger, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """Judge the rows of one client: labels (n,), points (n, 2) relative to the class disc."""
        return self.judge_rows(make_rows((client,), None, labels, points, limits))

    def coverage(self: Ledger, client: str) -> dict[int, float]:
        """CQS of every class in which this client has records."""
        return dict(self.standing(client).coverage)

    def clients(self: Ledger) -> Iterable[str]:
        """The names of all clients on record, sorted."""
        return sorted({standing.name for standing in self.each_standing() if not standing.group})

    def standings(self: Ledger) -> list[Standing]:
        """Where all stand, the highest wealth first, then by name."""
        latest = {(standing.group, standing.name): standing for standing in self.each_standing()}
        return sorted(latest.values(), key=lambda s: (-s.wealth, s.group, s.name))

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm, the wealth and the homes of a client or group."""
        self._operate("pardon", name, actor, group=group)

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list, or take it off."""
        self._operate("allow" if allowed else "disallow", client, actor)

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client its own budget, or the guard's limits again."""
        self._operate("budget", client, actor, budget=check_budget(budget))

    def accept(self, lost: str, actor: str) -> str:
        """Give the ledger a new id after the one that was `lost`, and log who did it."""
        event = make_event("accept", Standing("ledger", group=False), actor=check_client(actor))
        if not is_id(lost):
            raise OptionError(f"expected the id that the error names, 16 digits and letters a to f, got {lost!r}")
        own = self.set_fact(ID, new_id(), replace=False)  # type: ignore[attr-defined]
        earlier = (self.fact(ACCEPTED) or "").split()  # type: ignore[attr-defined]
        self.set_fact(ACCEPTED, " ".join(dict.fromkeys([*earlier, own, lost])))  # type: ignore[attr-defined]
        self._add_event(event)
        return str(self.set_fact(ID, new_id()))  # type: ignore[attr-defined]

    def verify(self) -> None:
        """What is only in memory cannot be lost while it is used."""

    def _add_event(self, event: Event) -> None:
        """Log an event."""
        raise NotImplementedError(f"{type(self).__name__} logs no events")

    def _operate(self, order: str, name: str, actor: str, *, group: bool = False, budget: Budget | None = None) -> None:
        """Carry out an order (pardon, allow, disallow or budget) and log it, with the standing from before it."""
        raise NotImplementedError(f"{type(self).__name__} takes no orders from operators")


def make_event(what: str, standing: Standing, *, client: str = "", actor: str = "") -> Event:
    """An event that happens now to a client or group that stands like this; the store gives it its number."""
    name, group, wealth = standing.name, standing.group, standing.wealth
    return Event(0, what, name, group, client, wealth, standing.queries, standing.coverage, actor, time.time())


def check_event(event: int, count: int) -> None:
    """Events are numbered from 1 to their count."""
    if not 1 <= event <= count:
        raise OptionError(f"no event {event}; there are {count}")


def check_budget(budget: object) -> Budget | None:
    """A budget, or None for the guard's limits."""
    if budget is not None and not isinstance(budget, Budget):
        raise LimitsError(f"expected queen.ledger.Budget(...) or None, got {type(budget).__name__}")
    return budget
