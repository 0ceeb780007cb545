"""The protocol every ledger follows, and the rows it judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, isfinite
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queen.core.sensitivity import Floats
from queen.errors import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    LimitsError,
    NotFiniteError,
    OptionError,
    ShapeError,
)
from queen.options import Group, Limits
from queen.sentinel.evidence import Bets
from queen.types import Verdict

MAX_CLIENT_BYTES = 256
MAX_LABEL = 2**31 - 1
LETTERS = {verdict.value: verdict for verdict in Verdict}


@dataclass(frozen=True)
class Scope:
    """One account that a query is charged to: its client's own, or that of a group the client belongs to.

    `bar` is the sum of wealth that accuses; `enforce` says whether the alarm has consequences.
    """

    name: str
    group: bool
    limits: Limits
    bar: float = inf
    enforce: bool = False

    @property
    def stage(self) -> tuple[bool, str]:
        """When this account is asked: clients first, then groups by kind, which is what stands before the colon."""
        return self.group, self.name.partition(":")[0] if self.group else ""


@dataclass(frozen=True)
class Rows:
    """Checked queries in arrival order, as plain Python numbers: client index, label and point of every row.

    Points are relative to the class's disc. `scopes` holds, for every client, its own scope and then its groups' in
    order of kind, at most one of a kind; so all scopes of one stage are different accounts, whatever the batch.
    `bets` is what the sentinel adds; without it the ledger keeps coverage alone. Made by `make_rows`, never by hand.
    """

    clients: tuple[str, ...]
    owner: list[int]
    labels: list[int]
    x: list[float]
    y: list[float]
    scopes: tuple[tuple[Scope, ...], ...]
    bets: Bets | None = None


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


def check_client(client: object) -> str:
    """A client is a non-empty string of at most 256 bytes without NUL."""
    if not isinstance(client, str):
        raise ClientError(f"client must be a string, got {type(client).__name__}")
    try:
        size = len(client.encode())
    except UnicodeEncodeError as error:
        raise ClientError("client must be valid Unicode text") from error
    if not 0 < size <= MAX_CLIENT_BYTES or "\0" in client:
        raise ClientError(f"client must have 1 to {MAX_CLIENT_BYTES} bytes and no NUL, got {size} bytes")
    return client


def check_budget(budget: object) -> Budget | None:
    """A budget, or None for the guard's limits."""
    if budget is not None and not isinstance(budget, Budget):
        raise LimitsError(f"expected queen.ledger.Budget(...) or None, got {type(budget).__name__}")
    return budget


def make_rows(
    clients: tuple[str, ...],
    owner: ArrayLike | None,
    labels: ArrayLike,
    points: ArrayLike,
    limits: Limits,
    *,
    groups: Sequence[Mapping[str, Group]] | None = None,
    bets: Bets | None = None,
) -> Rows:
    """Check a batch: labels (n,), points (n, 2); `owner` (n,) indexes `clients` (None: all rows are the first's).

    `groups` holds, for every client, the groups it belongs to by name, at most one of a kind: the kind of "tenant:7" is
    "tenant".
    """
    for client in clients:
        check_client(client)
    if not clients or len(set(clients)) != len(clients):
        raise ClientError(f"expected at least one client and none twice, got {len(clients)}")
    try:
        label, point = np.asarray(labels), np.asarray(points)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"expected arrays of labels and points: {error}") from error
    if label.size == 0:
        raise EmptyBatchError("expected at least one query, got an empty batch")
    if label.ndim != 1 or point.shape != (len(label), 2):
        raise ShapeError(f"expected labels (n,) and points (n, 2), got {label.shape} and {point.shape}")
    if label.dtype.kind not in "iu" or point.dtype.kind != "f":
        raise DtypeError(f"expected integer labels and float points, got {label.dtype} and {point.dtype}")
    point = point.astype(np.float64, copy=False)
    x, y = point.T.tolist()
    if not all(map(isfinite, x)) or not all(map(isfinite, y)):
        raise NotFiniteError("points must be finite")
    if bets is not None and not all(map(isfinite, chain.from_iterable(bets.sketches))):
        raise NotFiniteError("features must be finite")
    listed = label.tolist()
    low, high = min(listed), max(listed)
    if low < 0 or high > MAX_LABEL:
        raise LabelError(f"labels must lie between 0 and {MAX_LABEL}, got {low} to {high}")
    _check_limits(limits, high)
    scopes = tuple(_scopes(client, limits, groups[i] if groups else {}, bets, high) for i, client in enumerate(clients))
    return Rows(clients, _owners(owner, len(listed), len(clients)), listed, x, y, scopes, bets)


def _scopes(
    client: str, limits: Limits, groups: Mapping[str, Group], bets: Bets | None, high: int
) -> tuple[Scope, ...]:
    bar, enforce = (bets.bar, bets.enforce) if bets else (inf, False)
    own = Scope(client, group=False, limits=limits, bar=bar, enforce=enforce)
    if not groups:
        return (own,)
    kinds = [check_client(name).partition(":")[0] for name in groups]
    if len(set(kinds)) != len(kinds):
        raise OptionError(f"expected at most one group of a kind, got {sorted(groups)}")
    shared = [
        Scope(name, group=True, limits=group.limits, bar=bar, enforce=enforce and group.enforce_alarm)
        for _, (name, group) in sorted(zip(kinds, groups.items(), strict=True), key=lambda found: found[0])
    ]
    for scope in shared:
        _check_limits(scope.limits, high)
    return (own, *shared)


def _check_limits(limits: Limits, high: int) -> None:
    if not isinstance(limits, Limits):
        raise LimitsError(f"limits must be queen.types.Limits, got {type(limits).__name__}")
    if isinstance(limits.radius, tuple) and high >= len(limits.radius):
        raise LabelError(f"limits have radii for {len(limits.radius)} classes, got label {high}")


def _owners(owner: ArrayLike | None, rows: int, clients: int) -> list[int]:
    if owner is None:
        return [0] * rows
    who = np.asarray(owner)
    if who.shape != (rows,):
        raise ShapeError(f"expected an owner for each of {rows} rows, got shape {who.shape}")
    if who.dtype.kind not in "iu":
        raise DtypeError(f"expected integer owners, got {who.dtype}")
    listed: list[int] = who.tolist()
    if min(listed) < 0 or max(listed) >= clients:
        raise ClientError(f"owners must lie between 0 and {clients - 1}, got {min(listed)} to {max(listed)}")
    return listed
