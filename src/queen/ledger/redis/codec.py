"""Rows as bytes for the scripts, and their hashes back to standings; packed, since numbers as text would be rounded."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queen.allowance import NAMES, Allowance
from queen.core.sensitivity import query_area
from queen.errors import LedgerError
from queen.ledger.rows import Rows, Scope
from queen.ledger.usage import UNUSED, Usage
from queen.ledger.words import Budget, Event, Standing
from queen.options import Limits
from queen.sentinel.bets import LANES, Bets, Test
from queen.sentinel.sketch import SIZE, Memory

SETTINGS = struct.Struct("<BBBIddddII")
POINT = struct.Struct("<Idddd")
STATE = struct.Struct("<Bdddd")
BUDGET = struct.Struct("<Bdd")
PERIODS = struct.Struct("<II")  # of a budget: of its threshold and of its extra answers, 0 for life
USAGE = struct.Struct("<dd")
RECORD = struct.Struct("<Idd")
TEST = struct.Struct("<q")
WEALTH = struct.Struct("<Bqd")  # of a test: which string holds the evidence (see judge.lua), the id, the wealth

NO_ALLOWANCE = Allowance(0)
KEYS = 4  # the first numbers of a sketch, which choose its box
WIDTH = 4.0  # of a box: what is nearer than 1 lies in it or in the next; wide, so that mostly one box is searched
FAR = 2.0**40  # beyond it, all lies in one box
SIDES = np.array(list(product((0, 1), repeat=KEYS)), np.uint64)  # (16, KEYS): the lower or the upper box
MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)
QUERY = np.dtype([
    ("digest", "<i8"), ("sketch", "<f4", SIZE), ("code", "<u4"), ("looks", "u1"), ("look", "<u4", len(SIDES)),
])  # fmt: skip


def tag(name: str, *, group: bool) -> str:
    """The part that all keys of a scope share, so that a cluster keeps them together: a hash of its name."""
    scope = f"{'group' if group else 'client'}\0{name}"
    return hashlib.blake2b(scope.encode(), digest_size=16).hexdigest()


class PackedRows:
    """A batch as arguments of `judge.lua`, which may be cut into any rows."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._points: dict[int, list[bytes]] = {}
        self._queries = _pack_queries(rows.bets) if rows.bets else []

    def arguments(
        self, scope: Scope, rows: Sequence[int], enforce: bytes, groups: Sequence[str], bar: float
    ) -> tuple[bytes, ...]:
        """The arguments of the script for these rows of a scope.

        `enforce` has a byte of flags per row, see judge.lua. `groups` are those of the client whose
        alarms would; `bar` is what the largest of the scores' sums of purses must reach to accuse the scope.
        """
        bets, limits = self._rows.bets, scope.limits
        points = self._points.get(id(limits))
        if points is None:
            points = self._points[id(limits)] = self._pack_points(limits)
        settings = SETTINGS.pack(
            bets is not None,
            scope.group,
            bets.test.scores if bets else 0,
            Memory.CAPACITY,
            limits.class_allowance.amount,
            limits.extra_allowance.amount,
            bar,
            bets.after_alarm if bets else 0.0,
            limits.class_allowance.period or 0,
            limits.extra_allowance.period or 0,
        )
        test = TEST.pack(bets.test.id) if bets else b""
        queries = b"".join([self._queries[row] for row in rows]) if bets else b""
        home = b"".join([group.encode() + b"\0" for group in groups])
        return settings, test, scope.name.encode(), b"".join([points[row] for row in rows]), queries, enforce, home

    def _pack_points(self, limits: Limits) -> list[bytes]:
        packed = []
        radius = limits.radius
        for label, x, y in zip(self._rows.labels, self._rows.x, self._rows.y, strict=True):
            r = radius[label] if isinstance(radius, tuple) else radius
            area = query_area(x, y, r) if x * x + y * y < 1.0 else 0.0
            packed.append(POINT.pack(label, x, y, r, area))
        return packed


def _pack_queries(bets: Bets) -> list[bytes]:
    """For every row its digest, sketch, codes and bet."""
    rows, scores = len(bets.digests), bets.test.scores
    table = np.zeros(rows, np.dtype([*QUERY.descr, ("bet", "<u4", 1 + scores + 3 * LANES * scores)]))
    sketches = np.array(bets.sketches, np.float32)
    table["digest"], table["sketch"] = bets.digests, sketches
    table["code"], table["looks"], table["look"] = _codes(sketches)
    size = bets.size.reshape(rows, scores, LANES)
    table["bet"][:, 0], table["bet"][:, 1 : 1 + scores] = size[:, 0, 0], size[:, :, -1]
    table["bet"][:, 1 + scores :] = np.stack([bets.total, bets.bet, bets.count], axis=2).reshape(rows, -1)
    whole, width = table.tobytes(), table.itemsize
    return [whole[i : i + width] for i in range(0, rows * width, width)]


def _codes(sketches: NDArray[np.float32]) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]]:
    """The code (n,) of each sketch's box; the number (n,) and the list (n, 16) of codes that near sketches may have."""
    keys = sketches[:, :KEYS].astype(np.float64)
    low, own, high = (_boxes(numbers) for numbers in (keys - 1.0, keys, keys + 1.0))
    code = (own * MIX).sum(1, dtype=np.uint64) >> np.uint64(32)
    look = ((low * MIX) @ (1 - SIDES).T + (high * MIX) @ SIDES.T) >> np.uint64(32)
    double = (low == high).astype(np.uint64) @ SIDES.T > 0  # the upper box where it is the lower one too
    order = np.argsort(double, axis=1, kind="stable")
    return (
        code.astype(np.uint32),
        (~double).sum(1),
        np.take_along_axis(look, order, 1).astype(np.uint32),
    )


def _boxes(numbers: NDArray[np.float64]) -> NDArray[np.uint64]:
    return np.floor(np.clip(numbers, -FAR, FAR) / WIDTH).astype(np.int64).view(np.uint64)


def test_fields(test: Test) -> tuple[bytes, bytes]:
    """The fields of `number.lua`: of a test, and of the number of tests in its account."""
    account = test.account.encode()
    return b"t" + account + TEST.pack(test.id), b"n" + account


def pack_budget(budget: Budget | None) -> tuple[bytes, bytes]:
    """A budget as the scope's hash holds it, in two fields; empty for the guard's limits.

    The second is there only where something renews, and repeats the first: a server that does not know about periods
    writes the first alone, and then what it wrote holds.
    """
    if budget is None:
        return b"", b""
    limits = budget.over(Limits())
    which = (budget.threshold is not None) + 2 * (budget.extra_answers is not None)
    of_class = limits.class_allowance if which & 1 else NO_ALLOWANCE
    extra = limits.extra_allowance if which & 2 else NO_ALLOWANCE
    packed = BUDGET.pack(which, of_class.amount, extra.amount)
    renews = of_class.period or extra.period
    return packed, packed + PERIODS.pack(of_class.period or 0, extra.period or 0) if renews else b""


def unpack_state(packed: bytes, name: str) -> tuple[int, int, int]:
    """Flags, queries and extra answers of a scope; `LedgerError` where another layout has other bytes."""
    if len(packed) != STATE.size:
        raise LedgerError(f"the entry of '{name}' was written by an older version; run: queen migrate")
    flags, queries, extra, _, _ = STATE.unpack(packed)
    return flags, int(queries), int(extra)


def unpack_standing(fields: Mapping[bytes, bytes], name: str, *, group: bool) -> Standing:
    """Where a scope stands, from the fields of its hash."""
    if b"s" not in fields:
        return Standing(name, group)
    flags, queries, extra = unpack_state(fields[b"s"], name)
    return Standing(
        name,
        group,
        queries,
        max((wealth for _, _, wealth in WEALTH.iter_unpack(fields.get(b"w", b""))), default=0.0),
        bool(flags & 1),
        bool(flags & 2),
        extra,
        int(fields.get(b"a", 0)),
        _unpack_budget(fields[b"b"], fields.get(b"p", b"")) if b"b" in fields else None,
        unpack_coverage(b"".join(key + value[:8] for key, value in fields.items() if len(key) == 4)),
        _unpack_usage(fields[b"r"]) if b"r" in fields else UNUSED,
        {label: _unpack_usage(value) for label, value in sorted(_class_usages(fields))},
    )


def _class_usages(fields: Mapping[bytes, bytes]) -> Iterator[tuple[int, bytes]]:
    """The labels of classes whose budget was used while it renews, and how it was."""
    return ((int.from_bytes(key[1:], "little"), value) for key, value in fields.items() if len(key) == 5)


def _unpack_usage(packed: bytes) -> Usage:
    amount, at = USAGE.unpack(packed)
    return Usage(amount, int(at))


def _unpack_budget(packed: bytes, with_periods: bytes) -> Budget:
    which, threshold, extra = BUDGET.unpack(packed)
    is_theirs = with_periods[: len(packed)] == packed
    class_period, extra_period = PERIODS.unpack(with_periods[len(packed) :]) if is_theirs else (0, 0)
    return Budget(
        threshold=_said(threshold, class_period) if which & 1 else None,
        extra_answers=_said(int(extra), extra_period) if which & 2 else None,
    )


def _said(amount: float, period: int) -> Any:
    """An amount as `Budget` takes it."""
    return f"{amount!r}/{NAMES[period]}" if period else amount


def unpack_coverage(packed: bytes) -> dict[int, float]:
    """CQS by class from (label, CQS) pairs."""
    return dict(sorted(struct.iter_unpack("<Id", packed)))


def pack_event(event: Event) -> bytes:
    """An event as it is stored; its number is its place in the list."""
    fields = {name: value for name, value in vars(event).items() if name not in ("id", "acknowledged")}
    return json.dumps(fields).encode()


def unpack_event(number: int, packed: bytes, acknowledged: str | None) -> Event:
    """An event from the list."""
    fields = json.loads(packed)
    fields["coverage"] = {int(label): cqs for label, cqs in fields["coverage"].items()}
    return Event(id=number, acknowledged=acknowledged, **fields)


def unpack_records(fields: Mapping[bytes, bytes]) -> dict[int, list[tuple[float, float]]]:
    """Points by class in the order in which they were recorded, from the hash of squares."""
    numbered: dict[int, list[tuple[int, float, float]]] = {}
    for square, entries in fields.items():
        (label,) = struct.unpack("<I", square[:4])
        numbered.setdefault(label, []).extend(RECORD.iter_unpack(entries))
    return {label: [(x, y) for _, x, y in sorted(records)] for label, records in sorted(numbered.items())}
