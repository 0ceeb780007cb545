"""A ledger that many servers share: Redis or Valkey, one or a cluster. Record, sync, answer."""

from __future__ import annotations

import struct
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from queen.ledger.base import Judgement, Standing
from queen.ledger.decide import mean_wealth
from queen.ledger.redis_admin import RedisAdmin
from queen.ledger.redis_client import Script, ScriptCall
from queen.ledger.redis_codec import Packed, pack_event, unpack_coverage
from queen.ledger.rows import Rows, Scope

JUDGE = Script("judge.lua")
LETTERS = "ABCD"
LETTER, SPENT, ACCUSED, ALARMED, TRUSTED = 3, 4, 8, 16, 32  # of the byte that the script says of a row
FAILED = LETTERS.index("B")
ALARM = struct.Struct("<Id")  # row, queries


class RedisLedger(RedisAdmin):
    """Decides bit for bit as the ledger in memory does, in one script a scope and batch.

    Each scope is judged where it lives: first all clients of a batch, in one round trip, then the groups kind by kind
    with the rows that nobody has denied. A failure in between may count a query that nobody answered, never the other
    way round. Servers must be durable (`appendonly yes`, `appendfsync always`, `noeviction`) unless `allow_volatile`.
    Whatever is not answered within about `timeout` seconds is a `LedgerError`, or, where some shards of a cluster
    answered, `Judgement.failed`; nothing is sent again, and the next call tries anew.
    """

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge and record; see `Ledger`."""
        packed, found = Packed(rows), _Replies(rows)
        for stage in sorted({scope.stage for scopes in rows.scopes for scope in scopes}):
            parts = found.parts(stage)
            calls = [
                ScriptCall(self._keys(of.name, group=of.group), packed.arguments(of, chosen)) for of, chosen in parts
            ]
            for (scope, chosen), reply in zip(parts, self._shards.run(JUDGE, calls), strict=True):
                if self._shards.is_error(reply):
                    found.fail(chosen, reply)
                else:
                    found.hear(scope, chosen, reply)
        self._say([pack_event("alarm", standing, client=client) for standing, client in found.alarms()])
        if len(found.errors) == len(rows.owner):
            raise self._shards.error(next(iter(found.errors.values())))
        return found.judgement()


class _Replies:
    """What the scopes have said so far of every row of a batch."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._own = [0] * len(rows.owner)  # what the client's own scope said
        self._all = [0] * len(rows.owner)  # what any scope said
        self._goes_on = [True] * len(rows.owner)
        self._stops = TRUSTED if rows.bets is None else TRUSTED | SPENT | ACCUSED
        self._raised: list[tuple[int, Standing, str]] = []
        self.errors: dict[int, object] = {}

    def parts(self, stage: tuple[bool, str]) -> list[tuple[Scope, list[int]]]:
        """The rows that the scopes of a stage are asked about, in order, cut where the limits of a name change."""
        of_owner = [next((s for s in scopes if s.stage == stage), None) for scopes in self._rows.scopes]
        asked: dict[str, list[tuple[Scope, int]]] = {}
        for row, owner in enumerate(self._rows.owner):
            if self._goes_on[row] and (scope := of_owner[owner]):
                asked.setdefault(scope.name, []).append((scope, row))
        return [
            (scope, [row for _, row in chosen])
            for of_name in asked.values()
            for scope, chosen in groupby(of_name, key=itemgetter(0))
        ]

    def hear(self, scope: Scope, rows: list[int], reply: list[Any]) -> None:
        """Note what the script said of these rows."""
        for row, said in zip(rows, reply[0], strict=True):
            if not scope.group:
                self._own[row] = said
            self._all[row] |= said
            if said & self._stops:
                self._goes_on[row] = False
        for head, wealth, coverage in reply[1:]:
            row, queries = ALARM.unpack(head)
            mean = mean_wealth(struct.unpack(f"<{len(wealth) // 8}d", wealth))
            standing = Standing(
                scope.name, scope.group, int(queries), mean, alarmed=True, coverage=unpack_coverage(coverage)
            )
            client = self._rows.clients[self._rows.owner[rows[row]]]
            self._raised.append((rows[row], standing, client))

    def fail(self, rows: list[int], error: object) -> None:
        """Note that these rows may or may not be on record."""
        for row in rows:
            self.errors[row], self._goes_on[row] = error, False
            self._own[row], self._all[row] = FAILED, SPENT

    def alarms(self) -> tuple[tuple[Standing, str], ...]:
        """The alarms in the order in which one row after the other would have raised them."""
        return tuple((standing, client) for _, standing, client in sorted(self._raised, key=itemgetter(0)))

    def judgement(self) -> Judgement:
        """The verdicts of all rows."""
        own, every = np.array(self._own), np.array(self._all)
        failed = np.zeros(len(own), np.bool_)
        failed[list(self.errors)] = True
        return Judgement(
            "".join([LETTERS[said & LETTER] for said in self._own]),
            (every & SPENT) > 0,
            ((every & ACCUSED) > 0) | ((own & ALARMED) > 0),
            (own & TRUSTED) > 0,
            failed,
            self.alarms(),
        )
