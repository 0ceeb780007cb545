"""The protocol every ledger follows, the rows it judges, and the one scan that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queen.core.sensitivity import Floats, inside, query_area
from queen.types import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    Limits,
    LimitsError,
    NotFiniteError,
    ShapeError,
    Verdict,
)

MAX_CLIENT_BYTES = 256
MAX_LABEL = 2**31 - 1
Number = TypeVar("Number", float, Floats)
LETTERS = {verdict.value: verdict for verdict in Verdict}


@dataclass(frozen=True)
class Rows:
    """Queries in arrival order, checked and with all arithmetic but adding and comparing already done.

    `owner` (n,) indexes `clients`; `labels` (n,); `points` (n, 2) relative to the class disc; `areas` (n,) what each
    row would add to CQS; `inside` (n,); `radii` (n,). Made by `make_rows`, never by hand.
    """

    clients: tuple[str, ...]
    owner: NDArray[np.int64]
    labels: NDArray[np.int64]
    points: Floats
    areas: Floats
    inside: NDArray[np.bool_]
    radii: Floats
    threshold: float


@dataclass(frozen=True)
class Judgement:
    """What the ledger decided: one letter a row, and whether the row's class was spent before it came."""

    letters: str
    spent: NDArray[np.bool_]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The letters as `Verdict`s."""
        return tuple(LETTERS[letter] for letter in self.letters)


class Ledger(Protocol):
    """Judges rows in arrival order and remembers; several clients may mix in one call."""

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge all rows and record the fresh ones, or raise `LedgerError` and record nothing."""
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
        """Names of all clients with at least one record."""
        ...

    def close(self) -> None:
        """Give back files and connections."""
        ...


class OneClient:
    """Gives every ledger `judge` as the one-client case of its `judge_rows`."""

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


def make_rows(
    clients: tuple[str, ...], owner: ArrayLike | None, labels: ArrayLike, points: ArrayLike, limits: Limits
) -> Rows:
    """Check a batch and do its arithmetic; `owner` says which client each row belongs to (None: all the first)."""
    for client in clients:
        check_client(client)
    if not clients or len(set(clients)) != len(clients):
        raise ClientError(f"expected at least one client and none twice, got {len(clients)}")
    label, point = np.asarray(labels), np.asarray(points)
    if label.ndim != 1 or point.shape != (len(label), 2):
        raise ShapeError(f"expected labels (n,) and points (n, 2), got {label.shape} and {point.shape}")
    if len(label) == 0:
        raise EmptyBatchError("expected at least one query, got an empty batch")
    if label.dtype.kind not in "iu" or point.dtype.kind != "f":
        raise DtypeError(f"expected integer labels and float points, got {label.dtype} and {point.dtype}")
    label, point = label.astype(np.int64, copy=False), point.astype(np.float64, copy=False)
    if not np.isfinite(point).all():
        raise NotFiniteError("points must be finite")
    if label.min() < 0 or label.max() > MAX_LABEL:
        raise LabelError(f"labels must lie between 0 and {MAX_LABEL}, got {label.min()} to {label.max()}")
    radii = _radii(label, limits)
    who = _owners(owner, len(label), len(clients))
    return Rows(clients, who, label, point, query_area(point, radii), inside(point), radii, float(limits.threshold))


def _owners(owner: ArrayLike | None, rows: int, clients: int) -> NDArray[np.int64]:
    if owner is None:
        return np.zeros(rows, np.int64)
    who = np.asarray(owner)
    if who.shape != (rows,):
        raise ShapeError(f"expected an owner for each of {rows} rows, got shape {who.shape}")
    if who.dtype.kind not in "iu":
        raise DtypeError(f"expected integer owners, got {who.dtype}")
    if who.min() < 0 or who.max() >= clients:
        raise ClientError(f"owners must lie between 0 and {clients - 1}, got {who.min()} to {who.max()}")
    return who.astype(np.int64, copy=False)


def _radii(labels: NDArray[np.int64], limits: Limits) -> Floats:
    if not isinstance(limits, Limits):
        raise LimitsError(f"limits must be queen.types.Limits, got {type(limits).__name__}")
    if not isinstance(limits.radius, tuple):
        return np.full(len(labels), limits.radius, np.float64)
    if labels.max() >= len(limits.radius):
        raise LabelError(f"limits have radii for {len(limits.radius)} classes, got label {labels.max()}")
    return np.asarray(limits.radius, np.float64)[labels]


class ClassState:
    """One client and class: CQS, the records, and a grid that finds the ones near a point.

    A cell is a little wider than twice the radius and lists every record whose square of side 2 rho reaches into it,
    so a query looks into one cell only. Records are at least rho apart, so that list is short, whatever the traffic.
    """

    __slots__ = ("cells", "cqs", "radius", "records")

    def __init__(self) -> None:
        self.cqs = 0.0
        self.records: list[tuple[float, float]] = []
        self.radius = 0.0
        self.cells: dict[int, tuple[tuple[float, float], ...]] = {}  # tuples, which the garbage collector lets go

    def regrid(self, radius: float) -> None:
        """Arrange the records for another radius."""
        self.radius, self.cells = radius, {}
        for x, y in self.records:
            self._place(x, y)

    def add(self, x: float, y: float, area: float) -> None:
        """Record a point and its area."""
        self.cqs += area
        self.records.append((x, y))
        self._place(x, y)

    def _place(self, x: float, y: float) -> None:
        point, radius, cells = (x, y), self.radius, self.cells
        side = cell_side(radius)
        left, right = floor((x - radius) / side) * STRIDE, floor((x + radius) / side) * STRIDE
        low, high = floor((y - radius) / side), floor((y + radius) / side)
        for cell in {left + low, left + high, right + low, right + high}:
            cells[cell] = (*cells.get(cell, ()), point)


STRIDE = 1 << 26  # cells are numbered column * STRIDE + line, exact for every radius that Limits allows
SPENT, FRESH, REPEAT = b"BCD"


def cell_side(radius: Number) -> Number:
    """Twice the radius and a hair more, so that rounding cannot hide a neighbour."""
    return radius * (2.0 * (1.0 + 1e-9))


def scan(
    rows: Rows, state_of: Callable[[str, int], ClassState], on_record: Callable[[int], None] | None = None
) -> Judgement:
    """Judge rows one after the other against the states; THE decision procedure of every Python ledger.

    Each verdict inside the disc depends on the records before it, so that part is a plain loop. The rest is
    vectorised: a class turns spent once and for good, so the row of that turn says `spent` for all rows.
    """
    count = len(rows.labels)
    span = int(rows.labels.max()) + 1
    keys, slots = np.unique(rows.owner * span + rows.labels, return_inverse=True)
    states = [state_of(rows.clients[key // span], key % span) for key in keys.tolist()]
    for state, row in zip(states, _row_of_each(slots, len(states)), strict=True):
        if state.radius != rows.radii[row]:
            state.regrid(float(rows.radii[row]))
    grids = [state.cells for state in states]
    squares = [state.radius * state.radius for state in states]
    threshold = rows.threshold
    spent_after = [-1 if state.cqs > threshold else count for state in states]
    looked_at = np.flatnonzero(rows.inside)
    x, y, side = rows.points[looked_at, 0], rows.points[looked_at, 1], cell_side(rows.radii[looked_at])
    cells = (np.floor(x / side) * STRIDE + np.floor(y / side)).astype(np.int64)
    letters = bytearray(b"A" * count)
    columns = (looked_at, slots[looked_at], x, y, cells, rows.areas[looked_at])
    for row, slot, px, py, cell, area in zip(*(column.tolist() for column in columns), strict=True):
        square = squares[slot]
        for rx, ry in grids[slot].get(cell, ()):
            dx, dy = px - rx, py - ry
            if dx * dx + dy * dy < square:
                letters[row] = REPEAT
                break
        else:
            if spent_after[slot] < row:
                letters[row] = SPENT
                continue
            letters[row] = FRESH
            state = states[slot]
            state.add(px, py, area)
            if state.cqs > threshold:
                spent_after[slot] = row
            if on_record is not None:
                on_record(row)
    return Judgement(letters.decode(), np.asarray(np.array(spent_after)[slots] < np.arange(count)))


def _row_of_each(slots: NDArray[np.int64], count: int) -> list[int]:
    """A row of every slot: the last assignment wins, and any row of a slot has its radius."""
    first = np.zeros(count, np.int64)
    first[slots] = np.arange(len(slots))
    return first.tolist()
