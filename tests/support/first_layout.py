"""Data as the first version of the Redis ledger wrote it, made by hand: that version is gone, its data is not."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from queen.ledger.redis.codec import _codes, tag

NO_DIGEST = 0  # of a query that was remembered, but not answered


@dataclass(frozen=True)
class FirstScope:
    """A client or group, and what the first layout had of it; `remembered` are digests and sketches, oldest first."""

    name: str
    group: bool = False
    queries: int = 0
    extra: int = 0
    alarmed: bool = False
    allowed: bool = False
    budget: tuple[float, int] | None = None
    wealth: tuple[float, ...] = ()
    coverage: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # records by class
    remembered: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    capacity: int = 1024

    def write(self, server: Any, prefix: str) -> None:
        """Put it where the first version would have."""
        key = f"{prefix}:{{{tag(self.name, group=self.group)}}}"
        flags = self.alarmed + 2 * self.allowed + 4 * self.group
        size, bets, count = len(self.wealth), 7, len(self.remembered)
        state = struct.pack("<BIdddd", flags, size, self.queries, bets, self.extra, count) + struct.pack("<q", 99)
        fields: dict[bytes, bytes] = {b"s": state, b"n": self.name.encode()}
        for i in range(0, size, 8):
            part = self.wealth[i : i + 8]
            fields[b"w%d" % (i // 8 + 1)] = struct.pack(f"<{len(part)}d", *part)
        if self.budget is not None:
            fields[b"b"] = struct.pack("<Bdd", 3, *self.budget)
        radius, squares = 0.1, {}
        for label, records in self.coverage.items():
            packed = struct.pack("<I", label)
            fields[packed] = struct.pack("<ddd", 0.01 * len(records), radius, len(records))
            for number, (x, y) in enumerate(records):
                side = 2 * radius * (1 + 1e-9)
                square = packed + struct.pack("<ii", int(x // side), int(y // side))
                squares[square] = squares.get(square, b"") + struct.pack("<Idd", number, x, y)
        server.hset(key, mapping=fields)
        if squares:
            server.hset(f"{key}r", mapping=squares)
        if count:
            server.set(f"{key}m", self._memory())

    def _memory(self) -> bytes:
        """A power of two of slots: the codes of all, then digest and sketch of each; the oldest are overwritten."""
        room = 1
        while room < min(len(self.remembered), self.capacity):
            room *= 2
        codes, entries = [bytes(4)] * room, [bytes(40)] * room
        for i, (digest, sketch) in enumerate(self.remembered):
            (code,), _, _ = _codes(np.array([sketch], np.float32))
            codes[i % self.capacity] = struct.pack("<I", code)
            entries[i % self.capacity] = struct.pack("<q8f", digest, *sketch)
        return b"".join(codes) + b"".join(entries)


def write_event(server: Any, prefix: str, **fields: object) -> None:
    """An event in the log of the first version, which is that of the second."""
    usual = {"what": "alarm", "name": "a", "group": False, "client": "a", "wealth": 20.5, "queries": 3, "actor": ""}
    server.rpush(f"{prefix}:events", json.dumps({**usual, "coverage": {"1": 0.5}, "at": 1.5, **fields}))
