"""The protocol every ledger follows, and the words it speaks: judgements, standings, budgets and events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queen.core.sensitivity import Floats
from queen.errors import LimitsError
from queen.ledger.rows import Rows, make_rows
from queen.options import Limits
from queen.types import Verdict

LETTERS = {verdict.value: verdict for verdict in Verdict}


@dataclass(frozen=True)
class Judgement:
    """What the ledger decided of every row: a letter, whether nothing is left to spend on it, whether it is alarmed.

    Without bets `spent` says that the row's class was spent before it came; with them, that no budget is left for it.
    `trusted` rows are those of clients on the allow-list. `failed` rows may not be answered: part of the store failed,
    so it is not certain that they are on record; their letter is B and they count as spent. (If all failed, the ledger
    raises `LedgerError` instead.) `alarms` holds how each newly accused scope stood, and the client who asked.
    """

    letters: str
    spent: NDArray[np.bool_]
    alarmed: NDArray[np.bool_]
    trusted: NDArray[np.bool_]
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    alarms: tuple[tuple[Standing, str], ...] = ()

    def __post_init__(self) -> None:
        if len(self.failed) != len(self.letters):  # not given: none failed
            object.__setattr__(self, "failed", np.zeros(len(self.letters), np.bool_))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The letters as `Verdict`s."""
        return tuple(LETTERS[letter] for letter in self.letters)


@dataclass(frozen=True)
class Event:
    """Something an operator should know: an alarm, or what an operator did about one.

    `what` is alarm, pardon, allow, disallow or budget; `name` is the client or group it is about, `client` the one
    whose query raised the alarm, `wealth` the mean over scores and exponents (accused at 1 / alpha, times one more for
    every group that shares alpha), `coverage` CQS by class.
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
    """What an operator grants one client instead of the guard's limits; None leaves the guard's."""

    threshold: float | None = None
    extra_answers: int | None = None

    def __post_init__(self) -> None:
        plain = self.over(Limits())  # says what is wrong with the numbers, and makes plain ones of them
        for name in ("threshold", "extra_answers"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, getattr(plain, name))

    def over(self, limits: Limits) -> Limits:
        """The limits with this budget."""
        return replace(limits, **{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class Standing:
    """Where a client or group stands: `queries` are those that it was asked about, under any policy.

    Wealth and extra answers are counted under the sentinel only.
    """

    name: str
    group: bool
    queries: int = 0
    wealth: float = 0.0
    alarmed: bool = False
    allowed: bool = False
    extra_answers: int = 0
    budget: Budget | None = None  # its own, if an operator gave it one
    coverage: Mapping[int, float] = field(default_factory=dict)

    @property
    def on_record(self) -> bool:
        """Whether it asked, or an operator gave it something; one that operators only ever pardoned is not."""
        return bool(self.queries or self.allowed or self.budget)


class Ledger(Protocol):
    """Judges rows in arrival order and remembers; several clients may mix in one call."""

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge all rows and record the fresh ones, or raise `LedgerError`: then nobody may be answered.

        A row is judged by its client's own scope and then by its groups' in order of kind. Each decides and charges by
        itself; what one denies is not passed on, and what a trusted client asks concerns no group.
        """
        ...

    def judge(self, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """The one-client case: labels (n,), points (n, 2) relative to the class disc."""
        ...

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class this client has touched."""
        ...

    def records(self, client: str) -> dict[int, Floats]:
        """The recorded points (m, 2) of every class this client has touched, oldest first."""
        ...

    def clients(self) -> Iterable[str]:
        """Names of all clients on record, sorted: those that asked, and those that an operator gave something."""
        ...

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client (or group) stands; one nobody heard of stands at the beginning."""
        ...

    def standings(self) -> list[Standing]:
        """Where all clients and groups on record stand, the highest wealth first."""
        ...

    def each_standing(self) -> Iterator[Standing]:
        """The same in no order, one after the other, for whoever cannot hold a million of them.

        Each is as it was when it was read, and one may come twice (a Redis cluster moves them).
        """
        ...

    def events(self) -> list[Event]:
        """Alarms and what operators did, oldest first."""
        ...

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has seen an event."""
        ...

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm and the wealth of a client (or group), never its coverage or records."""
        ...

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list (or take it off): always answered honestly, and no weight on its groups."""
        ...

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client a budget of its own, or (None) the guard's again."""
        ...

    def check(self) -> None:
        """Raise `LedgerError` if nothing can be written now; for a server that wants to know before anybody asks."""
        ...

    def close(self) -> None:
        """Give back files and connections."""
        ...


class Derived:
    """What every ledger makes of the rest of it."""

    def standings(self: Ledger) -> list[Standing]:
        """Where all stand, the highest wealth first, then by name."""
        found = {(standing.group, standing.name): standing for standing in self.each_standing()}
        return sorted(found.values(), key=lambda s: (-s.wealth, s.group, s.name))

    def judge(self: Ledger, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """Judge the rows of one client: labels (n,), points (n, 2) relative to the class disc."""
        return self.judge_rows(make_rows((client,), None, labels, points, limits))


def check_budget(budget: object) -> Budget | None:
    """A budget, or None for the guard's limits."""
    if budget is not None and not isinstance(budget, Budget):
        raise LimitsError(f"expected queen.ledger.Budget(...) or None, got {type(budget).__name__}")
    return budget
