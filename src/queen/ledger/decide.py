"""The decision procedure of every Python ledger.

In one scope, a query of class k at the relative point p meets the records R_k and the coverage CQS_k, and its letter is

    A   |p|^2 >= 1                          outside the disc
    D   |p - r|^2 < rho^2 for an r in R_k   inside, but it overlaps a record
    B   CQS_k > t                           inside and new, but the class is spent
    C   else                                inside and new: R_k gains p, and CQS_k gains rho^2 SQS(p)^2

Where t renews, CQS_k is here what the class has gained in the present window (see `Usage`); records stay for ever.

Under the sentinel a query unlike all earlier ones also places a bet, and a scope is accused when its wealth reaches the
bar. Letters A and D cost one extra answer each; a query whose class is spent, or for which no extra answer is left, is
denied, and costs nothing in the scope that denies it. When a budget comes to its end, that is noted (see `Notice`).
Exact repeats of answered queries are free, and a trusted client is never denied. Whatever an accused scope is asked is
counted and denied, except exact repeats of what it was answered before: a changed answer would prove the alarm, and the
same one tells nothing new. Beyond a cap on that count these are denied too. A whole batch is judged at one time.

Scopes are asked in stages, the clients first and then their groups, kind by kind; after a denial the rest are not asked. In
a stage the bets of all rows are placed first, then the rows are charged one by one. `judge.lua` is the same procedure
for Redis, one scope and one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter

import numpy as np

from queen.ledger.charge import Journal, Seat, charge_row, deny, note, record
from queen.ledger.rows import HOMES, Rows, Scope, bar_of
from queen.ledger.state import ScopeState
from queen.ledger.words import Denial, Judgement
from queen.sentinel.bets import Bets
from queen.sentinel.wealth import place_bets


def decide(
    rows: Rows, state_of: Callable[[Scope], ScopeState], journal: Journal, bar: float = inf, *, now: int
) -> Judgement:
    """Judge rows in order against the states, change these, and note in the journal what changed.

    `now` is the ledger's time, in whole Unix seconds; `bar` is what the largest of the scores' sums of purses must
    reach to accuse a client (a group: see `bar_of`). Rows are charged in a plain loop, since each verdict depends on
    the records before it; and with plain numbers, since for the small batches of a server calling numpy would cost
    more.
    """
    asking = set(rows.owner)  # a client that is listed but has no row is left alone
    seats = [
        _seats(scopes, state_of, now, with_bets=rows.bets is not None) if i in asking else []
        for i, scopes in enumerate(rows.scopes)
    ]
    journal.renews = any(seat.renews for of in seats for seat in of)
    count = len(rows.owner)
    verdicts = _Verdicts([""] * count, *([False] * count for _ in range(4)))
    open_rows: Sequence[int] = range(count)
    for stage in sorted({scope.stage for scopes in rows.scopes for scope in scopes}):
        at_stage = [next((seat for seat in of if seat.scope.stage == stage), None) for of in seats]
        chosen = [row for row in open_rows if at_stage[rows.owner[row]] is not None]
        asked = _Asked(chosen, [seat for row in chosen if (seat := at_stage[rows.owner[row]]) is not None])
        if rows.bets is None:
            closed = _charge_coverage(rows, asked, verdicts, journal)
        else:
            closed = _charge_with_bets(rows, rows.bets, asked, bar_of(bar, group=stage[0]), verdicts, journal)
        open_rows = [row for row in open_rows if row not in closed]
    trusted = [seats[owner][0].state.allowed for owner in rows.owner]
    journal.notices.sort(key=itemgetter(0))
    return Judgement(
        "".join(verdicts.letters),
        np.array(verdicts.spent, np.bool_),
        np.array(verdicts.alarmed, np.bool_),
        np.array(trusted, np.bool_),
        repeated=np.array(verdicts.repeated, np.bool_),
        cut_off=np.array(verdicts.cut_off, np.bool_),
        denials=verdicts.denials,
        notices=tuple(notice for _, notice in journal.notices),
    )


@dataclass(slots=True)
class _Verdicts:
    """What is known of every row so far: the letter of its client's own scope, and the masks of a `Judgement`."""

    letters: list[str]
    spent: list[bool]
    alarmed: list[bool]
    repeated: list[bool]
    cut_off: list[bool]
    denials: dict[int, Denial] = field(default_factory=dict, init=False)


@dataclass(slots=True)
class _Asked:
    """The rows of a stage in order, and where each is asked; two lists, since a tuple for every row would cost more."""

    rows: list[int]
    seats: list[Seat]

    def __iter__(self) -> Iterator[tuple[int, Seat]]:
        return zip(self.rows, self.seats, strict=True)


def _seats(
    scopes: tuple[Scope, ...], state_of: Callable[[Scope], ScopeState], now: int, *, with_bets: bool
) -> list[Seat]:
    """The seats of a client in its own scope and in its groups, which become its homes while it has too few."""
    seats: list[Seat] = []
    homes: dict[str, list[str]] = {}
    for scope in scopes:
        state = state_of(scope)
        limits = scope.limits if state.budget is None else state.budget.over(scope.limits)
        if not scope.group:
            homes = state.homes
        enforce = scope.enforce and not state.allowed
        if scope.group and scope.enforce and with_bets:
            of_kind = homes.setdefault(scope.kind, [])
            if scope.name not in of_kind and len(of_kind) < HOMES:
                of_kind.append(scope.name)
            enforce = scope.name in of_kind
        seats.append(Seat(scope, state, limits, enforce, now))
    return seats


def _charge_coverage(rows: Rows, asked: _Asked, verdicts: _Verdicts, journal: Journal) -> set[int]:
    """The paper's judgement: a letter, and whether the class was spent; returns the rows that no group hears of."""
    closed = set()
    for row, seat in asked:
        label, x, y, state = rows.labels[row], rows.x[row], rows.y[row], seat.state
        state.queries += 1
        of_class = state.class_state(label, seat.limits)
        is_spent = of_class.covered(seat.class_start) > seat.threshold
        verdicts.spent[row] = verdicts.spent[row] or is_spent
        letter = of_class.letter_of(x, y, is_spent=is_spent)
        if letter == "C":
            record(rows, row, seat, journal)
        verdicts.letters[row] = verdicts.letters[row] or letter
        if state.allowed:  # what a trusted client asks is not charged to its groups
            closed.add(row)
    return closed


def _charge_with_bets(
    rows: Rows, bets: Bets, asked: _Asked, bar: float, verdicts: _Verdicts, journal: Journal
) -> set[int]:
    """The sentinel's judgement; returns the rows that are denied or trusted, of which no further group hears."""
    near, alarms = _bet(rows, bets, asked, bar, journal)
    closed = set()
    for row, seat in asked:
        state, x, y = seat.state, rows.x[row], rows.y[row]
        of_class = state.class_state(rows.labels[row], seat.limits)
        is_class_spent = of_class.covered(seat.class_start) > seat.threshold
        letter = of_class.letter_of(x, y, is_spent=is_class_spent)
        verdicts.letters[row] = verdicts.letters[row] or letter
        state.queries += 1
        is_accused = seat.enforce and (state.alarmed or row in alarms)
        if row in alarms:
            state.alarmed = True
            note(rows, row, seat, "alarm", journal)
        if not seat.scope.group or is_accused:
            verdicts.alarmed[row] = state.alarmed
        if is_accused:
            verdicts.repeated[row], verdicts.cut_off[row] = _ask_accused(seat, bets, row)
            if not verdicts.repeated[row]:
                closed.add(row)
            continue
        known = near.get(row)
        if known is None:  # nothing was bet on it, since the alarm was raised before
            known = _recognise(state, bets.sketches[row])
        same = known and state.memory.was_answered(bets.digests[row])
        if verdicts.repeated[row] and not same:  # an earlier scope remembers it, but this one may have denied it then
            verdicts.repeated[row], verdicts.cut_off[row] = False, True
            closed.add(row)
            continue
        charge = letter in "AD" and not same
        is_spent = is_class_spent or (charge and state.extra_used(seat.extra_start) >= seat.most_extra)
        if is_spent and not same and not state.allowed:
            verdicts.spent[row], verdicts.repeated[row] = True, False  # though another scope would answer it again
            verdicts.denials[row] = deny(seat)
            closed.add(row)
            continue
        if charge or letter == "C":
            charge_row(rows, row, seat, letter, journal)
        if not same:
            state.memory.add_answered(bets.digests[row])
        if state.allowed:
            closed.add(row)
    return closed


def _ask_accused(seat: Seat, bets: Bets, row: int) -> tuple[bool, bool]:
    """Count a row of an accused scope: whether it is answered as it was before the alarm, and whether it is cut off.

    What a group denies is cut off, so that no member gets a decoy for what others have done.
    """
    seat.state.after_alarm += 1
    in_time = seat.state.after_alarm <= bets.after_alarm
    repeated = in_time and seat.state.memory.was_answered(bets.digests[row])
    return repeated, not repeated and (seat.scope.group or not in_time)


def _recognise(state: ScopeState, sketch: tuple[float, ...]) -> bool:
    """Whether a picture like this one is remembered; if not, it is from now on."""
    if state.memory.has_near(sketch):
        return True
    state.memory.add_picture(sketch)
    return False


def _bet(rows: Rows, bets: Bets, asked: _Asked, bar: float, journal: Journal) -> tuple[dict[int, bool], set[int]]:
    """Place the bets of a stage: by row whether its picture was known already, and the rows that raise an alarm.

    A known picture places no bet. States that are or get alarmed leave later rows out; those are charged without bets.
    """
    near: dict[int, bool] = {}
    states: list[ScopeState] = []
    number_of: dict[int, int] = {}
    chosen: list[int] = []
    owner: list[int] = []
    replaced = []
    for row, seat in asked:
        state = seat.state
        if state.alarmed:
            continue
        sketch = bets.sketches[row]
        known = near[row] = state.memory.has_near(sketch)
        if not known:
            number = number_of.get(id(state))
            if number is None:
                number = number_of[id(state)] = len(states)
                states.append(state)
            chosen.append(row)
            owner.append(number)
            replaced.append(state.memory.add_picture(sketch))
    if not chosen:
        return near, set()
    placed = bets if len(chosen) == len(rows.owner) else bets.take(chosen)
    winnings = [state.winnings_in(bets.test) for state in states]
    labels = [rows.labels[row] for row in chosen]
    reached = place_bets(winnings, np.array(owner), np.array(labels), placed, bar)
    of_state: list[set[int]] = [set() for _ in states]
    for number, label in zip(owner, labels, strict=True):
        of_state[number].add(label)
    journal.bets += zip(states, of_state, strict=True)
    last = [None if place is None else chosen[place] for place in reached]
    alarms = {row for row in last if row is not None}
    if alarms:  # forget what came later: it is judged as if it had come alone
        for row, number, sketch_before in zip(chosen[::-1], owner[::-1], replaced[::-1], strict=True):
            until = last[number]
            if until is not None and row > until:
                states[number].memory.drop_picture(sketch_before)
        for row, seat in asked:
            number = number_of.get(id(seat.state))
            until = None if number is None else last[number]
            if until is not None and row > until:
                near.pop(row, None)
    return near, alarms
