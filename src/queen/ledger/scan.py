"""The decision procedure of every Python ledger: one look at one grid cell a query."""

from __future__ import annotations

from collections.abc import Callable
from math import floor

import numpy as np

from queen.core.sensitivity import query_area
from queen.ledger.base import Judgement, Rows

STRIDE = 1 << 26  # cells are numbered column * STRIDE + line, exact for every radius that Limits allows


class ClassState:
    """One client and class: CQS, the records, and a grid that finds the ones near a point.

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

    def add(self, x: float, y: float, area: float) -> None:
        """Record a point and its area."""
        self.cqs += area
        self.records.append((x, y))
        self._place(x, y)

    def _place(self, x: float, y: float) -> None:
        point, radius, side, cells = (x, y), self.radius, self.side, self.cells
        left, right = floor((x - radius) / side) * STRIDE, floor((x + radius) / side) * STRIDE
        low, high = floor((y - radius) / side), floor((y + radius) / side)
        for cell in {left + low, left + high, right + low, right + high}:
            cells[cell] = (*cells.get(cell, ()), point)


def scan(
    rows: Rows,
    state_of: Callable[[str, int], ClassState],
    on_record: Callable[[int, float], None] = lambda row, area: None,
) -> Judgement:
    """Judge rows one after the other against the states; `on_record` hears of every recorded row and its area.

    A plain loop, since each verdict depends on the records before it; and plain numbers, since for the small batches
    of a server calling numpy would cost more than the loop does.
    """
    limits, threshold = rows.limits, rows.limits.threshold
    states: dict[tuple[int, int], ClassState] = {}
    letters: list[str] = []
    spent: list[bool] = []
    for row, (owner, label, x, y) in enumerate(zip(rows.owner, rows.labels, rows.x, rows.y, strict=True)):
        state = states.get((owner, label))
        if state is None:
            state = states[owner, label] = state_of(rows.clients[owner], label)
            radius = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
            if state.radius != radius:
                state.regrid(radius)
        is_spent = state.cqs > threshold
        spent.append(is_spent)
        if not x * x + y * y < 1.0:
            letters.append("A")
            continue
        square, side = state.radius * state.radius, state.side
        for rx, ry in state.cells.get(floor(x / side) * STRIDE + floor(y / side), ()):
            dx, dy = x - rx, y - ry
            if dx * dx + dy * dy < square:
                letters.append("D")
                break
        else:
            if is_spent:
                letters.append("B")
            else:
                letters.append("C")
                area = query_area(x, y, state.radius)
                state.add(x, y, area)
                on_record(row, area)
    return Judgement("".join(letters), np.array(spent, np.bool_))
