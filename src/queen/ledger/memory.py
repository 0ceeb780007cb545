"""A ledger that lives as long as the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from queen.core.sensitivity import Floats
from queen.ledger.base import BINDING, LedgerBase
from queen.ledger.charge import Journal
from queen.ledger.clock import LedgerClock
from queen.ledger.decide import decide
from queen.ledger.rows import Rows, Scope, check_client
from queen.ledger.state import ScopeState
from queen.ledger.words import Budget, Event, Judgement, Standing, check_event, make_event
from queen.sentinel.bets import Test

PAGE = 256  # standings read under one lock; others may judge between two pages


class MemoryLedger(LedgerBase):
    """All clients in one dictionary; safe to share between threads. Budgets renew by the `clock`."""

    def __init__(self, *, clock: LedgerClock | None = None) -> None:
        self._clock = clock or LedgerClock()
        self._states: dict[tuple[bool, str], ScopeState] = {}
        self._events: list[Event] = []
        self._tests: dict[str, list[int]] = {}  # ids by account, in the order in which they came
        self._facts: dict[str, str] = {}
        self._lock = threading.Lock()

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge and record; see `Ledger`."""
        journal = Journal()
        with self._lock:
            bar = rows.bets.test.bar(self._number_of(rows.bets.test)) if rows.bets else inf
            judgement = decide(rows, self._state_of, journal, bar, now=self._clock.now())
            for notice in judgement.notices:
                self._log(make_event(notice.what, notice.standing, client=notice.client))
        return judgement

    def now(self) -> int:
        """The time by which budgets renew."""
        return self._clock.now()

    def accept_clock(self, actor: str) -> None:
        """Let no use of a budget lie after now; see `Ledger`."""
        event = make_event("clock", Standing("ledger", group=False), actor=check_client(actor))
        with self._lock:
            now = self._clock.now()
            for state in self._states.values():
                state.not_after(now)
            self._log(event)

    def number_of(self, test: Test, *, claim: bool = True) -> int:
        """The number of a test among those of its account; a new one gets the next if it is to `claim` it."""
        with self._lock:
            return self._number_of(test, claim=claim)

    def _number_of(self, test: Test, *, claim: bool = True) -> int:
        known = self._tests.setdefault(test.account, [])
        if test.id not in known:
            if not claim:
                return len(known) + 1
            known.append(test.id)
        return known.index(test.id) + 1

    def _state_of(self, scope: Scope) -> ScopeState:
        return self._state(scope.name, group=scope.group)

    def _state(self, name: str, *, group: bool) -> ScopeState:
        key = group, name
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = ScopeState()
        return state

    def _log(self, event: Event) -> None:
        self._events.append(replace(event, id=len(self._events) + 1))

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        with self._lock:
            return self._peek(client).points()

    def _peek(self, name: str, *, group: bool = False) -> ScopeState:
        return self._states.get((group, check_client(name))) or ScopeState()

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client or group stands."""
        with self._lock:
            return self._peek(name, group=group).standing(name, group=group)

    def each_standing(self) -> Iterator[Standing]:
        """Where all stand, one after the other."""
        with self._lock:
            states = list(self._states.items())
        for first in range(0, len(states), PAGE):
            with self._lock:
                page = [s.standing(name, group=group) for (group, name), s in states[first : first + PAGE]]
            yield from (standing for standing in page if standing.on_record)

    def events(self, *, after: int = 0, newest: int | None = None) -> list[Event]:
        """Notices and what operators did, oldest first."""
        with self._lock:
            return self._events[after if newest is None else max(after, len(self._events) - newest) :]

    def acknowledgements(self) -> dict[int, str]:
        """Who has read which event."""
        with self._lock:
            return {event.id: event.acknowledged for event in self._events if event.acknowledged is not None}

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has read an event."""
        check_client(actor)
        with self._lock:
            check_event(event, len(self._events))
            self._events[event - 1] = replace(self._events[event - 1], acknowledged=actor)

    def _operate(self, order: str, name: str, actor: str, *, group: bool = False, budget: Budget | None = None) -> None:
        check_client(actor)
        with self._lock:
            state = self._state(check_client(name), group=group)
            self._log(make_event(order, state.standing(name, group=group), actor=actor))
            state.obey(order, budget)

    def _add_event(self, event: Event) -> None:
        with self._lock:
            self._log(event)

    def fact(self, name: str) -> str | None:
        """Something that is true of the whole ledger; see `Ledger`."""
        with self._lock:
            return self._facts.get(name)

    def set_fact(self, name: str, value: str, *, replace: bool = True) -> str:
        """Say something of the whole ledger, and return what holds."""
        with self._lock:
            if replace or name not in self._facts:
                self._facts[name] = value
            return self._facts[name]

    def rebind(self, binding: str, actor: str, *, name: str, forget_coverage: bool) -> None:
        """Say what the ledger is for from now on; see `Ledger`."""
        event = make_event("rebind", Standing(check_client(name), group=False), actor=check_client(actor))
        with self._lock:
            for state in self._states.values() if forget_coverage else ():
                state.classes.clear()
            self._facts[BINDING] = binding
            self._log(event)

    def check(self) -> None:
        """Memory can always be written."""

    def close(self) -> None:
        """Nothing to give back."""
