"""The states of those who asked lately, so that the SQLite ledger need not read them from its file again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from queen.ledger.state import ScopeState

# Bytes of what a state is made of, as measured on CPython 3.11 to 3.13, a little on the high side.
STATE_BYTES, CLASS_BYTES, RECORD_BYTES, TEST_BYTES, COUNTS_BYTES = 2200, 500, 600, 700, 350


class StateCache:
    """The states that were used last, by whether they are groups and by name, in about `limit` bytes.

    What a state takes is estimated from what it holds, without looking through it: a batch tells which states gained a
    record. All states of a batch stay until it is over, whatever they take.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._states: OrderedDict[tuple[bool, str], ScopeState] = OrderedDict()
        self._records: dict[tuple[bool, str], int] = {}
        self._bytes: dict[tuple[bool, str], int] = {}
        self.bytes = 0  # of all

    def __len__(self) -> int:
        """How many states there are."""
        return len(self._states)

    def get(self, key: tuple[bool, str]) -> ScopeState | None:
        """A state, which becomes the one used last; None if it is not here."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def add(self, key: tuple[bool, str], state: ScopeState) -> None:
        """Take in a state that was just read."""
        self._states[key] = state
        self._records[key] = sum(len(of_class.records) for of_class in state.classes.values())
        self._estimate(key)

    def measure(self, keys: Iterable[tuple[bool, str]], recorded: Iterable[ScopeState]) -> None:
        """Note that these states were used, and which gained a record, each time; then drop what is too much."""
        gained: dict[int, int] = {}
        for state in recorded:
            gained[id(state)] = gained.get(id(state), 0) + 1
        for key in keys:
            if gained:
                self._records[key] += gained.get(id(self._states[key]), 0)
            self._estimate(key)
        while self.bytes > self._limit and self._states:
            key, _ = self._states.popitem(last=False)
            del self._records[key]
            self.bytes -= self._bytes.pop(key)

    def _estimate(self, key: tuple[bool, str]) -> None:
        before = self._bytes.get(key, 0)
        self._bytes[key] = state_bytes(self._states[key], self._records[key]) + len(key[1])
        self.bytes += self._bytes[key] - before

    def clear(self) -> None:
        """Forget all."""
        self._states.clear()
        self._records.clear()
        self._bytes.clear()
        self.bytes = 0


def state_bytes(state: ScopeState, records: int) -> int:
    """About how many bytes a state takes that has so many records."""
    memory, classes = state.memory, len(state.classes)
    arrays = 8 * len(memory.digests) + 4 * len(memory.sketches) + 2 * (len(memory.first) + len(memory.following))
    size = STATE_BYTES + arrays + CLASS_BYTES * classes + RECORD_BYTES * records
    for winnings in state.winnings.values():  # two at most
        size += TEST_BYTES + COUNTS_BYTES * len(winnings.counts)
    return size
