"""A ledger that lives as long as the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from queen.core.sensitivity import Floats
from queen.ledger.base import Judgement, OneClient, Rows, check_client
from queen.ledger.scan import ClassState, scan


class MemoryLedger(OneClient):
    """Keeps every client in a dictionary; safe to share between threads."""

    def __init__(self) -> None:
        self._states: dict[str, dict[int, ClassState]] = {}
        self._lock = threading.Lock()

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge and record; see `Ledger`."""
        with self._lock:
            return scan(rows, self._state)

    def _state(self, client: str, label: int) -> ClassState:
        classes = self._states.get(client)
        if classes is None:
            classes = self._states[client] = {}
        state = classes.get(label)
        if state is None:
            state = classes[label] = ClassState()
        return state

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class this client has records in."""
        with self._lock:
            classes = self._states.get(check_client(client), {})
            return {label: state.cqs for label, state in sorted(classes.items()) if state.records}

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        with self._lock:
            classes = self._states.get(check_client(client), {})
            return {label: np.array(state.records) for label, state in sorted(classes.items()) if state.records}

    def clients(self) -> Iterable[str]:
        """Clients with at least one record, sorted."""
        with self._lock:
            return sorted(c for c, classes in self._states.items() if any(s.records for s in classes.values()))

    def close(self) -> None:
        """Nothing to give back."""
