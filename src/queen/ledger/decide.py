"""The decision procedure of every Python ledger, row after row and scope after scope.

In one scope, a query of class k at the relative point p meets the records R_k and the coverage CQS_k, and its letter is

    A   |p|^2 >= 1                          outside the disc
    D   |p - r|^2 < rho^2 for an r in R_k   inside, but it overlaps a record
    B   CQS_k > t                           inside and new, but the class is spent
    C   else                                inside and new: R_k gains p, and CQS_k gains rho^2 SQS(p)^2

Under the sentinel a query unlike all earlier ones also places a bet, and a scope is accused when its wealth reaches the
bar. Letters A and D cost one extra answer each; a query whose class is spent, or for which no extra answer is left, is
denied. Exact repeats of answered queries are free, and a trusted client is never denied.

`judge.lua` is the same procedure for Redis: the same sums, products and comparisons of doubles, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import floor

import numpy as np

from queen.core.sensitivity import Floats, query_area
from queen.ledger.base import Budget, Judgement, Standing
from queen.ledger.rows import Rows, Scope
from queen.options import Limits
from queen.sentinel.evidence import Bet, Bets, step
from queen.sentinel.sketch import NO_DIGEST, Memory

STRIDE = 1 << 26  # squares are numbered column * STRIDE + line, exact for every radius that Limits allows


class ClassState:
    """One class of one scope: CQS, the records, and a grid of squares that finds the records near a point.

    A square of the grid is a little wider than twice the radius and lists every record within one radius of it, along x
    and along y, so a query looks into one square only. Records are at least one radius apart, so that list is short.
    """

    __slots__ = ("cqs", "radius", "records", "side", "squares")

    def __init__(self) -> None:
        self.cqs = 0.0
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

    def letter_of(self, x: float, y: float, threshold: float) -> str:
        """The letter of a point, before anything is recorded."""
        if not x * x + y * y < 1.0:
            return "A"
        rho_squared, side = self.radius * self.radius, self.side
        for rx, ry in self.squares.get(floor(x / side) * STRIDE + floor(y / side), ()):
            dx, dy = x - rx, y - ry
            if dx * dx + dy * dy < rho_squared:
                return "D"
        return "B" if self.cqs > threshold else "C"

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
    """One client or group: its classes, and under the sentinel its wealth, extra answers and memory of queries."""

    __slots__ = (
        "alarmed", "allowed", "bets", "budget", "classes", "extra", "id", "memory", "queries", "test", "wealth",
    )  # fmt: skip

    def __init__(self) -> None:
        self.id: int | None = None  # for a store that numbers its scopes
        self.classes: dict[int, ClassState] = {}
        self.queries = 0
        self.bets = 0
        self.wealth: list[float] = []
        self.test = 0  # the test that the wealth was won in
        self.extra = 0  # extra answers given
        self.alarmed = False
        self.allowed = False
        self.budget: Budget | None = None
        self.memory: Memory | None = None

    def class_state(self, label: int, limits: Limits) -> ClassState:
        """The state of a class, its grid arranged for the radius in `limits`."""
        state = self.classes.get(label)
        if state is None:
            state = self.classes[label] = ClassState()
        radius = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
        if state.radius != radius:
            state.regrid(radius)
        return state

    def obey(self, order: str, budget: Budget | None) -> None:
        """Carry out an operator's order, as `operate.lua` does; a pardon leaves coverage, records and memory alone."""
        if order == "pardon":
            self.alarmed, self.bets, self.wealth = False, 0, []
        elif order == "budget":
            self.budget = budget
        else:
            self.allowed = order == "allow"

    @property
    def remembered(self) -> int:
        """The number of distinct queries ever put into its memory."""
        return self.memory.count if self.memory else 0

    def points(self) -> dict[int, Floats]:
        """The recorded points (m, 2) of every class with a record, oldest first."""
        return {label: np.array(state.records) for label, state in sorted(self.classes.items()) if state.records}

    def coverage(self) -> dict[int, float]:
        """CQS of every class with a record."""
        return {label: state.cqs for label, state in sorted(self.classes.items()) if state.records}

    def standing(self, name: str, *, group: bool) -> Standing:
        """Where it stands, as operators see it."""
        wealth = mean_wealth(self.wealth)
        return Standing(
            name, group, self.queries, wealth, self.alarmed, self.allowed, self.extra, self.budget, self.coverage()
        )


def mean_wealth(wealth: Sequence[float]) -> float:
    """Wealth as operators see it: the mean over scores and exponents."""
    return sum(wealth) / len(wealth) if wealth else 0.0


@dataclass
class Journal:
    """What `decide` changed: records (state, label, x, y, area) in order, and alarms (standing, client who asked)."""

    records: list[tuple[ScopeState, int, float, float, float]] = field(default_factory=list)
    alarms: list[tuple[Standing, str]] = field(default_factory=list)


def decide(rows: Rows, state_of: Callable[[Scope], ScopeState], journal: Journal) -> Judgement:
    """Judge rows one after the other against the states, change these, and note in the journal what changed.

    A plain loop, since each verdict depends on the records before it; and plain numbers, since for the small batches
    of a server calling numpy would cost more than the loop does.
    """
    scopes_of: dict[int, list[ChargedScope]] = {}
    judge = _judge_coverage if rows.bets is None else partial(_judge_with_bets, rows.bets)
    letters: list[str] = []
    spent: list[bool] = []
    alarmed: list[bool] = []
    trusted: list[bool] = []
    for row, owner in enumerate(rows.owner):
        scopes = scopes_of.get(owner)
        if scopes is None:
            scopes = scopes_of[owner] = [_with_own_budget(scope, state_of(scope)) for scope in rows.scopes[owner]]
        letter, is_spent, is_alarmed = judge(rows, row, scopes, journal)
        letters.append(letter)
        spent.append(is_spent)
        alarmed.append(is_alarmed)
        trusted.append(scopes[0][1].allowed)
    masks = [np.array(flags, np.bool_) for flags in (spent, alarmed, trusted)]
    return Judgement("".join(letters), masks[0], masks[1], masks[2], alarms=tuple(journal.alarms))


ChargedScope = tuple[Scope, ScopeState]  # in a list the client's own scope comes first, then its groups'


def _with_own_budget(scope: Scope, state: ScopeState) -> ChargedScope:
    return (scope if state.budget is None else replace(scope, limits=state.budget.over(scope.limits))), state


def _judge_coverage(rows: Rows, row: int, scopes: list[ChargedScope], journal: Journal) -> tuple[str, bool, bool]:
    """The paper's judgement: the client's own letter, and whether the class was spent in its own scope or a group's."""
    label, x, y = rows.labels[row], rows.x[row], rows.y[row]
    letter, is_spent = "", False
    for scope, state in scopes:
        state.queries += 1
        threshold = scope.limits.threshold
        of_class = state.class_state(label, scope.limits)
        is_spent = is_spent or of_class.cqs > threshold
        scope_letter = of_class.letter_of(x, y, threshold)
        if scope_letter == "C":
            journal.records.append((state, label, x, y, of_class.add(x, y)))
        letter = letter or scope_letter
        if state.allowed:  # what a trusted client asks is not charged to its groups
            break
    return letter, is_spent, False


def _judge_with_bets(
    bets: Bets, rows: Rows, row: int, scopes: list[ChargedScope], journal: Journal
) -> tuple[str, bool, bool]:
    """The sentinel's judgement: the client's own letter, whether a budget is spent, whether the client is accused.

    One scope after the other decides and charges by itself, so that a store may keep each of them on another server.
    What one denies is not passed on to the next; what a group denies has been charged to the client already.
    """
    letter, is_spent, is_accused = "", False, False
    for scope, state in scopes:
        scope_letter, is_spent, is_accused = _judge_in_scope(bets, rows, row, scope, state, journal)
        letter = letter or scope_letter
        if is_spent or is_accused or state.allowed:
            break
    return letter, is_spent, is_accused or scopes[0][1].alarmed


def _judge_in_scope(
    bets: Bets, rows: Rows, row: int, scope: Scope, state: ScopeState, journal: Journal
) -> tuple[str, bool, bool]:
    """Judge one row in one scope and charge for it: the letter, whether it is spent, whether it is accused."""
    label, x, y, digest, sketch = rows.labels[row], rows.x[row], rows.y[row], bets.digests[row], bets.sketches[row]
    limits = scope.limits
    of_class = state.class_state(label, limits)
    letter = of_class.letter_of(x, y, limits.threshold)
    state.queries += 1
    enforce = scope.enforce and not state.allowed
    if state.alarmed and enforce:
        return letter, False, True
    if (memory := state.memory) is None:
        memory = state.memory = Memory()
    near = memory.has_near(sketch)
    same = near and memory.has_same(digest)
    is_accused = False
    if not near and not state.alarmed and _place_bet(bets, bets.factors[row], scope, state):
        state.alarmed = True
        journal.alarms.append((state.standing(scope.name, group=scope.group), rows.clients[rows.owner[row]]))
        is_accused = enforce
    charge = letter in "AD" and not same
    closed = of_class.cqs > limits.threshold or (charge and state.extra >= limits.extra_answers)
    is_spent = closed and not same and not state.allowed
    if is_spent or is_accused:
        if not near:
            memory.add(NO_DIGEST, sketch)  # it places no second bet, but is not free either: it was never answered
        return letter, is_spent and not is_accused, is_accused
    if letter == "C":
        journal.records.append((state, label, x, y, of_class.add(x, y)))
    if charge:
        state.extra += 1
    if not same:
        memory.add(digest, sketch)
    return letter, False, False


def _place_bet(bets: Bets, factors: Bet, scope: Scope, state: ScopeState) -> bool:
    """Place a bet, unless there are no factors; true if the sum of wealth has reached the bar."""
    if not factors:
        return False
    if not state.wealth or state.test != bets.test:  # the first bet, or the guard tests something else now
        state.test, state.bets, state.wealth = bets.test, 0, [0.0] * bets.size
    state.wealth, total = step(state.wealth, factors, state.bets, bets.form)
    state.bets += 1
    return total >= scope.bar
