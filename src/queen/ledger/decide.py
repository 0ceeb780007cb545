"""The decision procedure of every Python ledger: one look at one grid cell a query, and one bet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import floor

import numpy as np

from queen.core.sensitivity import query_area
from queen.ledger.base import Budget, Judgement, Standing
from queen.ledger.rows import Rows, Scope
from queen.options import Limits
from queen.sentinel.evidence import Bet, Bets, step
from queen.sentinel.sketch import NO_DIGEST, Memory

STRIDE = 1 << 26  # cells are numbered column * STRIDE + line, exact for every radius that Limits allows


class ClassState:
    """One scope and class: CQS, the records, and a grid that finds the ones near a point.

    A cell is a little wider than twice the radius and lists every record whose square of side 2 rho reaches into it,
    so a query looks into one cell only. Records are at least rho apart, so that list is short, whatever the traffic.
    """

    __slots__ = ("cells", "cqs", "radius", "records", "side")

    def __init__(self) -> None:
        self.cqs = 0.0
        self.records: list[tuple[float, float]] = []
        self.radius = 0.0
        self.side = 0.0
        self.cells: dict[int, tuple[tuple[float, float], ...]] = {}  # tuples, which the garbage collector lets go

    def regrid(self, radius: float) -> None:
        """Arrange the records for another radius."""
        self.radius, self.cells = radius, {}
        self.side = 2.0 * radius * (1.0 + 1e-9)  # a hair more, so that a square reaches into four cells at most
        for x, y in self.records:
            self._place(x, y)

    def find(self, x: float, y: float, threshold: float) -> str:
        """The letter of a point, before anything is recorded."""
        if not x * x + y * y < 1.0:
            return "A"
        square, side = self.radius * self.radius, self.side
        for rx, ry in self.cells.get(floor(x / side) * STRIDE + floor(y / side), ()):
            dx, dy = x - rx, y - ry
            if dx * dx + dy * dy < square:
                return "D"
        return "B" if self.cqs > threshold else "C"

    def add(self, x: float, y: float) -> float:
        """Record a point; returns its area."""
        area = query_area(x, y, self.radius)
        self.cqs += area
        self.records.append((x, y))
        self._place(x, y)
        return area

    def _place(self, x: float, y: float) -> None:
        point, radius, side, cells = (x, y), self.radius, self.side, self.cells
        left, right = floor((x - radius) / side) * STRIDE, floor((x + radius) / side) * STRIDE
        low, high = floor((y - radius) / side), floor((y + radius) / side)
        for cell in {left + low, left + high, right + low, right + high}:
            cells[cell] = (*cells.get(cell, ()), point)


class ScopeState:
    """One client or group: its classes, and under the sentinel its wealth, budget and memory."""

    __slots__ = (
        "alarmed", "allowed", "bets", "budget", "classes", "extra", "id", "memory", "queries", "test", "wealth",
    )  # fmt: skip

    def __init__(self) -> None:
        self.id: int | None = None  # for a store that numbers its scopes
        self.classes: dict[int, ClassState] = {}
        self.queries = 0
        self.bets = 0
        self.wealth: list[float] = []
        self.test = 0  # which test the wealth was won in
        self.extra = 0
        self.alarmed = False
        self.allowed = False
        self.budget: Budget | None = None
        self.memory: Memory | None = None

    def of_class(self, label: int, limits: Limits) -> ClassState:
        """The class's state, its grid arranged for the limits."""
        state = self.classes.get(label)
        if state is None:
            state = self.classes[label] = ClassState()
        radius = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
        if state.radius != radius:
            state.regrid(radius)
        return state

    def pardon(self) -> None:
        """Forget the evidence; coverage, records and memory stay."""
        self.alarmed, self.bets, self.wealth = False, 0, []

    def coverage(self) -> dict[int, float]:
        """CQS of every class with a record."""
        return {label: state.cqs for label, state in sorted(self.classes.items()) if state.records}

    def standing(self, name: str, *, group: bool) -> Standing:
        """What an operator may see of it."""
        wealth = mean_wealth(self.wealth)
        return Standing(
            name, group, self.queries, wealth, self.alarmed, self.allowed, self.extra, self.budget, self.coverage()
        )


def mean_wealth(wealth: Sequence[float]) -> float:
    """Wealth as operators see it: the mean over scores and exponents."""
    return sum(wealth) / len(wealth) if wealth else 0.0


@dataclass
class Journal:
    """What a scan changed: records in order, and alarms as (how the scope stood then, the client who asked)."""

    records: list[tuple[ScopeState, int, float, float, float]] = field(default_factory=list)
    alarms: list[tuple[Standing, str]] = field(default_factory=list)


def scan(rows: Rows, state_of: Callable[[Scope], ScopeState], journal: Journal) -> Judgement:
    """Judge rows one after the other against the states and write down what changed.

    A plain loop, since each verdict depends on the records before it; and plain numbers, since for the small batches
    of a server calling numpy would cost more than the loop does.
    """
    found: dict[int, list[Charged]] = {}
    judge = _cover if rows.bets is None else partial(_watch, rows.bets)
    letters: list[str] = []
    spent: list[bool] = []
    alarmed: list[bool] = []
    trusted: list[bool] = []
    for row, owner in enumerate(rows.owner):
        scopes = found.get(owner)
        if scopes is None:
            scopes = found[owner] = [_with_own_budget(scope, state_of(scope)) for scope in rows.scopes[owner]]
        letter, is_spent, is_alarmed = judge(rows, row, scopes, journal)
        letters.append(letter)
        spent.append(is_spent)
        alarmed.append(is_alarmed)
        trusted.append(scopes[0][1].allowed)
    each = [np.array(flags, np.bool_) for flags in (spent, alarmed, trusted)]
    return Judgement("".join(letters), each[0], each[1], each[2], alarms=tuple(journal.alarms))


Charged = tuple[Scope, ScopeState]  # the client's own scope comes first, then its groups'


def _with_own_budget(scope: Scope, state: ScopeState) -> Charged:
    return (scope if state.budget is None else replace(scope, limits=state.budget.over(scope.limits))), state


def _cover(rows: Rows, row: int, scopes: list[Charged], journal: Journal) -> tuple[str, bool, bool]:
    """The paper's judgement: the client's letter, and whether the class was spent, in its own scope or a group's."""
    label, x, y = rows.labels[row], rows.x[row], rows.y[row]
    letter, is_spent = "", False
    for scope, state in scopes:
        state.queries += 1
        threshold = scope.limits.threshold
        cover = state.of_class(label, scope.limits)
        is_spent = is_spent or cover.cqs > threshold
        here = cover.find(x, y, threshold)
        if here == "C":
            journal.records.append((state, label, x, y, cover.add(x, y)))
        letter = letter or here
        if state.allowed:  # a trusted client is no weight on its groups
            break
    return letter, is_spent, False


def _watch(bets: Bets, rows: Rows, row: int, scopes: list[Charged], journal: Journal) -> tuple[str, bool, bool]:
    """The sentinel's judgement: the client's letter, whether a budget is used up, whether the client is accused.

    One scope after the other decides and charges by itself, so that a store may keep every scope elsewhere. What one
    denies is not passed on to the next; what a group denies has been charged to the client already.
    """
    letter, is_spent, is_accused = "", False, False
    for scope, state in scopes:
        here, is_spent, is_accused = _weigh(bets, rows, row, scope, state, journal)
        letter = letter or here
        if is_spent or is_accused or state.allowed:
            break
    return letter, is_spent, is_accused or scopes[0][1].alarmed


def _weigh(
    bets: Bets, rows: Rows, row: int, scope: Scope, state: ScopeState, journal: Journal
) -> tuple[str, bool, bool]:
    """What one scope says of one row, and its charge: the letter, whether it is spent, whether it is accused."""
    label, x, y, digest, sketch = rows.labels[row], rows.x[row], rows.y[row], bets.digests[row], bets.sketches[row]
    limits = scope.limits
    cover = state.of_class(label, limits)
    letter = cover.find(x, y, limits.threshold)
    state.queries += 1
    enforce = scope.enforce and not state.allowed
    if state.alarmed and enforce:
        return letter, False, True
    if (memory := state.memory) is None:
        memory = state.memory = Memory()
    near = memory.has_near(sketch)
    same = near and memory.has_same(digest)
    is_accused = False
    if not near and not state.alarmed and _bet(bets, bets.factors[row], scope, state):
        state.alarmed = True
        journal.alarms.append((state.standing(scope.name, group=scope.group), rows.clients[rows.owner[row]]))
        is_accused = enforce
    charge = letter in "AD" and not same
    closed = cover.cqs > limits.threshold or (charge and state.extra >= limits.extra_answers)
    is_spent = closed and not same and not state.allowed
    if is_spent or is_accused:
        if not near:
            memory.add(NO_DIGEST, sketch)  # places no second bet, but is not free either: it was never answered
        return letter, is_spent and not is_accused, is_accused
    if letter == "C":
        journal.records.append((state, label, x, y, cover.add(x, y)))
    if charge:
        state.extra += 1
    if not same:
        memory.add(digest, sketch)
    return letter, False, False


def _bet(bets: Bets, factors: Bet, scope: Scope, state: ScopeState) -> bool:
    """Place a bet; whether wealth has reached the bar."""
    if not factors:
        return False
    if not state.wealth or state.test != bets.test:  # the first bet, or the guard tests something else now
        state.test, state.bets, state.wealth = bets.test, 0, [0.0] * bets.size
    state.wealth, total = step(state.wealth, factors, state.bets, bets.form)
    state.bets += 1
    return total >= scope.bar
