"""A queue that serves clients in turn by rows, so that nobody waits for another one's flood.

Every client has a line of its own, first come first served, and the lines take turns (deficit round robin, Shreedhar
and Varghese 1995): in its turn a line may give up `turn` rows, and what it could not use it may use in its next turn. A
client therefore waits for less than two turns of each other line, however long those are. Clients who stand accused
have one turn together. When room must be made, the longest line loses its newest request, the accused before all
others. A turn takes the same time however many clients there are, and to make room takes hardly more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, Protocol, TypeVar


class HasRows(Protocol):
    """What can wait: something with at least one row."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        ...


Part = TypeVar("Part", bound=HasRows)
ACCUSED_LINE = ""  # stands for all accused clients in the ring of lines; no client has this name
SPARE = 64  # entries that count no more, beyond as many as there are lines, before a heap is forgotten
_entry_numbers = count(1)  # a line that changes from one heap to the other must not find an old entry of its own


@dataclass(slots=True)
class Line(Generic[Part]):
    """What one client waits for, the oldest first; each part with whether it is the first one of its request."""

    client: str
    accused: bool
    parts: deque[tuple[Part, bool]] = field(default_factory=deque)
    rows: int = 0
    credit: int = 0  # rows that it may still give up
    in_turn: bool = False
    entry: int = 0  # number of its entry among the lengths


class Lengths(Generic[Part]):
    """Which of some lines is the longest: a heap that is made when somebody asks, and forgotten when few do.

    While there is one, every line has one entry that counts, with at least as many rows as the line has; the entries it
    had before are skipped.
    """

    def __init__(self, lines: Mapping[str, Line[Part]]) -> None:
        self._lines = lines
        self._heap: list[tuple[int, int, Line[Part]]] = []  # minus its rows, number of the entry, line

    def note_longer(self, line: Line[Part]) -> None:
        """A line has more rows than before."""
        if self._heap:
            heappush(self._heap, self._entry(line))
            if len(self._heap) > 2 * len(self._lines) + SPARE:
                self._heap.clear()

    def note_gone(self, line: Line[Part]) -> None:
        """A line is none of these lines any more."""
        line.entry = 0

    def longest(self) -> Line[Part] | None:
        """The line with most rows; None if there are no lines."""
        if not self._heap:
            self._heap = [self._entry(line) for line in self._lines.values() if line.rows]
            heapify(self._heap)
        while self._heap:
            rows, entry, line = self._heap[0]
            if line.entry != entry:
                heappop(self._heap)
            elif line.rows < -rows:
                heapreplace(self._heap, self._entry(line))
            else:
                return line
        return None

    def _entry(self, line: Line[Part]) -> tuple[int, int, Line[Part]]:
        line.entry = next(_entry_numbers)
        return -line.rows, line.entry, line


class FairQueue(Generic[Part]):
    """Requests of many clients in parts of at most `turn` rows; a client with `max_client_rows` waiting must stop.

    Not thread-safe: the caller holds a lock.
    """

    def __init__(self, *, turn: int, max_client_rows: int) -> None:
        self.rows = 0  # of all that wait
        self._turn, self._max_client_rows = turn, max_client_rows
        self._lines: dict[str, Line[Part]] = {}
        self._ring: OrderedDict[str, Line[Part]] = OrderedDict()  # who is first has its turn
        self._accused_ring: OrderedDict[str, Line[Part]] = OrderedDict()  # the same for the turn of the accused
        lines = {False: self._ring, True: self._accused_ring}  # by accused
        self._lengths: dict[bool, Lengths[Part]] = {accused: Lengths(ring) for accused, ring in lines.items()}

    def rows_of(self, client: str) -> int:
        """How many rows of a client wait."""
        line = self._lines.get(client)
        return 0 if line is None else line.rows

    def has_room(self, client: str) -> bool:
        """Whether a client may add a request, of any size: nobody knows how many rows it has before it is parsed."""
        return self.rows_of(client) < self._max_client_rows

    def rows_ahead(self, client: str) -> int:
        """About how many rows are served before what this client would add now: its own, and others' turns."""
        own = self.rows_of(client)
        others = len(self._ring) - (own > 0)
        return min(self.rows, own + (own // self._turn + 1) * self._turn * others)

    def push(self, client: str, parts: Sequence[Part], *, accused: bool = False) -> None:
        """Add one request of a client, in parts."""
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = Line(client, accused)
            self._enter(line)
        rows = 0
        for part in parts:
            line.parts.append((part, not rows))
            rows += part.rows
        self._resize(line, rows)

    def first(self) -> Part | None:
        """The part that is served next; it stays until `pop`. None if nothing waits."""
        line = self._first_line()
        return None if line is None else line.parts[0][0]

    def pop(self) -> Part:
        """Take the part that is served next."""
        line = self._first_line()
        if line is None:
            raise IndexError("nothing waits")
        part, _ = line.parts.popleft()
        line.credit -= part.rows
        self._resize(line, -part.rows)
        return part

    def shed(self) -> list[Part]:
        """Remove the newest request of the longest line, the accused first, and return what was left of it."""
        line = self._lengths[True].longest() or self._lengths[False].longest()
        return [] if line is None else self._shed_newest(line)

    def set_accused(self, client: str, accused: bool) -> None:
        """Serve a client among the accused from now on, or among the others; what it waits for keeps its order."""
        line = self._lines.get(client)
        if line is not None and line.accused != accused:
            self._leave(line)
            line.accused, line.credit, line.in_turn = accused, 0, False
            self._enter(line)

    def _shed_newest(self, line: Line[Part]) -> list[Part]:
        removed: list[Part] = []
        is_first = False
        while line.parts and not is_first:
            part, is_first = line.parts.pop()
            removed.append(part)
        self._resize(line, -sum(part.rows for part in removed))
        return removed[::-1]

    def _first_line(self) -> Line[Part] | None:
        """The line whose turn it is, with enough credit for its first part."""
        while self._ring:
            line = next(iter(self._ring.values()))
            if line.client == ACCUSED_LINE:
                line = next(iter(self._accused_ring.values()))
            if not line.in_turn:
                line.in_turn = True
                line.credit += self._turn
            if line.parts[0][0].rows <= line.credit:
                return line
            line.in_turn = False
            if line.accused:
                self._accused_ring.move_to_end(line.client)
            self._ring.move_to_end(ACCUSED_LINE if line.accused else line.client)
        return None

    def _resize(self, line: Line[Part], rows: int) -> None:
        """Note that a line has become longer, or shorter; an empty one is forgotten, and its credit with it."""
        line.rows += rows
        self.rows += rows
        if rows > 0:
            self._lengths[line.accused].note_longer(line)
        if not line.rows:
            self._leave(line)
            del self._lines[line.client]

    def _enter(self, line: Line[Part]) -> None:
        """Give a line the last place in its ring, and the accused one among the others if they had none."""
        if line.rows:
            self._lengths[line.accused].note_longer(line)
        if not line.accused:
            self._ring[line.client] = line
            return
        if not self._accused_ring:
            self._ring[ACCUSED_LINE] = Line(ACCUSED_LINE, accused=True)
        self._accused_ring[line.client] = line

    def _leave(self, line: Line[Part]) -> None:
        self._lengths[line.accused].note_gone(line)
        if not line.accused:
            del self._ring[line.client]
            return
        del self._accused_ring[line.client]
        if not self._accused_ring:
            del self._ring[ACCUSED_LINE]
        elif line.in_turn:  # the turn of the accused ends with it
            self._ring.move_to_end(ACCUSED_LINE)
