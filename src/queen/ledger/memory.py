"""A ledger that lives as long as the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from queen.core.sensitivity import Floats
from queen.errors import OptionError
from queen.ledger.base import Budget, Derived, Event, Judgement, Standing, check_budget
from queen.ledger.decide import Journal, ScopeState, scan
from queen.ledger.rows import Rows, Scope, check_client

PAGE = 256


class MemoryLedger(Derived):
    """Keeps every client in a dictionary; safe to share between threads."""

    def __init__(self) -> None:
        self._states: dict[tuple[bool, str], ScopeState] = {}
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge and record; see `Ledger`."""
        journal = Journal()
        with self._lock:
            judgement = scan(rows, self._state, journal)
            for standing, client in journal.alarms:
                self._note("alarm", standing, client=client)
        return judgement

    def _state(self, scope: Scope) -> ScopeState:
        return self._get(scope.name, group=scope.group)

    def _get(self, name: str, *, group: bool = False) -> ScopeState:
        key = group, name
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = ScopeState()
        return state

    def _note(self, what: str, of: Standing, *, client: str = "", actor: str = "") -> None:
        number, now = len(self._events) + 1, time.time()
        self._events.append(
            Event(number, what, of.name, of.group, client, of.wealth, of.queries, of.coverage, actor, now)
        )

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class this client has records in."""
        with self._lock:
            return self._peek(client).coverage()

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        with self._lock:
            classes = self._peek(client).classes
            return {label: np.array(state.records) for label, state in sorted(classes.items()) if state.records}

    def _peek(self, name: str, *, group: bool = False) -> ScopeState:
        return self._states.get((group, check_client(name))) or ScopeState()

    def clients(self) -> Iterable[str]:
        """Clients on record, sorted."""
        return sorted(found.name for found in self.each_standing() if not found.group)

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client or group stands."""
        with self._lock:
            return self._peek(name, group=group).standing(name, group=group)

    def each_standing(self) -> Iterator[Standing]:
        """Where all stand, one after the other."""
        with self._lock:
            states = list(self._states.items())
        for first in range(0, len(states), PAGE):  # judging goes on between two pages
            with self._lock:
                found = [s.standing(name, group=group) for (group, name), s in states[first : first + PAGE]]
            yield from (standing for standing in found if standing.on_record)

    def events(self) -> list[Event]:
        """Alarms and what operators did, oldest first."""
        with self._lock:
            return list(self._events)

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has seen an event."""
        check_client(actor)
        with self._lock:
            if not 1 <= event <= len(self._events):
                raise OptionError(f"no event {event}; there are {len(self._events)}")
            self._events[event - 1] = replace(self._events[event - 1], acknowledged=actor)

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm and wealth of a client or group."""
        with self._lock:
            self._operate("pardon", name, actor, group=group).pardon()

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list, or take it off."""
        with self._lock:
            state = self._operate("allow" if allowed else "disallow", client, actor)
            state.allowed = allowed

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client a budget of its own, or the guard's again."""
        with self._lock:
            check_budget(budget)
            self._operate("budget", client, actor).budget = budget

    def _operate(self, what: str, name: str, actor: str, *, group: bool = False) -> ScopeState:
        """Log what an operator does to a client or group, with how it stood before."""
        check_client(actor)
        state = self._get(check_client(name), group=group)
        self._note(what, state.standing(name, group=group), actor=actor)
        return state

    def check(self) -> None:
        """Memory can always be written."""

    def close(self) -> None:
        """Nothing to give back."""
