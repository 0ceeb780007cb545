"""The words that every ledger speaks: judgements, denials, notices, events, budgets and standings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from queen.errors import LimitsError, OptionError
from queen.ledger.usage import UNUSED, Usage
from queen.options import Limits
from queen.types import Verdict

LETTERS = {verdict.value: verdict for verdict in Verdict}
LOW = 0.8  # share of a budget after which it is low
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

    If some are left, it was a class that is spent. Which one is not said: that would be the label of the query. Where
    something of the budget renews, `at` is the ledger's time of the denial, else 0; `renews` is when all of it that is
    spent will have renewed, None if not all does. Both follow from the account alone, not from the query.
    """

    name: str
    group: bool
    used: int
    limit: int
    renews: int | None = None
    at: int = 0


@dataclass(frozen=True)
class Notice:
    """What a query has brought about, one of `NOTICES`; how the client or group stood then, and the client who asked.

    Under the sentinel a budget is low when the share `LOW` of the extra answers is used, and spent when all are. A
    class is low, or spent, when its coverage comes to that share of the threshold, or beyond it; only the first class
    of a client or group is noted. Each is noted when the mark is passed, so once, unless an operator moves the mark;
    once in every window, where the budget renews.
    """

    what: str
    standing: Standing
    client: str


@dataclass(frozen=True)
class Event:
    """Something an operator should know: a notice of the ledger, or what an operator did.

    `what` is one of `NOTICES`, or pardon, allow, disallow, budget, or, of the whole ledger, accept (of lost state),
    clock (that went back, and was accepted) or rebind; `name` is the client, group or bundle it is about, and `client`
    the one whose query brought it about. `wealth` is that of its best score in its best test (it accuses at the bar,
    see `Test.bar`; 0 where it is about a budget), `coverage` is CQS by class. The numbers are from that query, or from
    just before the operator acted.
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

    threshold: float | str | None = None
    extra_answers: int | str | None = None

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
    one that raised it included, as long as the alarm has consequences. `extra_answers` and `coverage` are all there
    ever were; `extra_usage` and `class_usage` are what was used under limits that renew, see `extra_used`.
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
    extra_usage: Usage = UNUSED
    class_usage: Mapping[int, Usage] = field(default_factory=dict)

    @property
    def on_record(self) -> bool:
        """Whether the ledger knows this client or group: it asked, or an operator allowed it or gave it a budget.

        All other numbers follow from queries, and a pardon alone puts nobody on record.
        """
        return bool(self.queries or self.allowed or self.budget)

    def extra_used(self, limits: Limits, now: int) -> int:
        """How many extra answers count under these limits, at the ledger's time."""
        start = limits.extra_allowance.start(now)
        return self.extra_answers if start is None else int(self.extra_usage.since(start))

    def covered(self, limits: Limits, now: int) -> dict[int, float]:
        """The coverage of every class that counts under these limits, at the ledger's time."""
        start = limits.class_allowance.start(now)
        if start is None:
            return dict(self.coverage)
        return {label: self.class_usage.get(label, UNUSED).since(start) for label in self.coverage}

    def extra_renews(self, limits: Limits, now: int) -> int | None:
        """When the extra answers renew (Unix seconds); None if they do not."""
        return limits.extra_allowance.renews(max(now, self.extra_usage.at))

    def classes_renew(self, limits: Limits, now: int) -> int | None:
        """When the budgets of all classes will have renewed; None if they do not."""
        return limits.class_allowance.renews(max(now, *(usage.at for usage in self.class_usage.values()), 0))

    def short_of(self, limits: Limits, now: int) -> tuple[str, ...]:
        """Which budgets are low or spent under these limits, in the words of `NOTICES`; none if it is allowed."""
        if self.allowed:
            return ()
        extra, most = self.extra_used(limits, now), limits.extra_allowance.amount
        covered, threshold = max(self.covered(limits, now).values(), default=0.0), limits.class_allowance.amount
        words = ("budget spent",) if extra >= most else ("budget low",) if extra >= LOW * most else ()
        if covered > threshold:
            return (*words, "class spent")
        return (*words, "class low") if 0 < LOW * threshold <= covered else words


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
