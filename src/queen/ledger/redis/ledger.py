"""A ledger that many guards share, in Redis or Valkey: one server or a cluster. Record, sync, answer."""

from __future__ import annotations

import struct
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any

import numpy as np

from queen.ledger.redis.admin import RedisAdmin
from queen.ledger.redis.codec import PackedRows, unpack_coverage
from queen.ledger.redis.script import Script, ScriptCall
from queen.ledger.rows import Rows, Scope, bar_of
from queen.ledger.words import NOTICES, Denial, Judgement, Notice, Standing, make_event

JUDGE = Script("judge.lua")
LETTERS = "ABCD"
# The bits of the byte that the script returns per row. Under an alarm with consequences a row is either denied or
# repeated; if it is cut off, it is denied as well.
LETTER, SPENT, DENIED, ALARMED, TRUSTED, REPEATED, CUT_OFF = 3, 4, 8, 16, 32, 64, 128
FAILED = LETTERS.index("B")
DENIAL = struct.Struct("<Idddd")  # row, extra answers used and in all, when all that is spent renews (or -1), the time
NOTICE = struct.Struct("<BIddd")  # place in `NOTICES`, row, number of queries, wealth, extra answers used


class RedisLedger(RedisAdmin):
    """Decides bit for bit as the ledger in memory does, with one run of a script per scope and batch.

    Each scope is judged on the server that holds it: first all clients of a batch, in one round trip, then the groups
    kind by kind with the rows that nobody has denied. A failure in between may charge for a query that nobody answered,
    never the other way round. Servers must be durable (`appendonly yes`, `appendfsync always`, `noeviction`) unless
    `allow_volatile`. Whatever is not answered within about `timeout` seconds is a `LedgerError`, or, where some servers
    of a cluster answered, `Judgement.failed`; nothing is sent again, and the next call starts afresh. A server that has
    lost what it acknowledged is refused, too: as long as this ledger is open, and with a `witness` (a file to remember
    it in) also when it is opened again.
    """

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge and record; see `Ledger`."""
        self._refuse_lost()
        packed, replies = PackedRows(rows), _Replies(rows)
        bar = rows.bets.test.bar(self.number_of(rows.bets.test)) if rows.bets else inf
        for stage in sorted({scope.stage for scopes in rows.scopes for scope in scopes}):
            parts = replies.parts(stage)
            calls = [
                ScriptCall(
                    self._keys(of.name, group=of.group),
                    packed.arguments(
                        of,
                        chosen,
                        replies.enforce(of, chosen),
                        replies.groups(of, chosen),
                        bar_of(bar, group=of.group),
                    ),
                )
                for of, chosen in parts
            ]
            for (scope, chosen), reply in zip(parts, self._servers.run(JUDGE, calls), strict=True):
                if self._servers.is_error(reply):
                    replies.add_failure(chosen, reply)
                else:
                    replies.add(scope, chosen, reply)
        self._log([make_event(notice.what, notice.standing, client=notice.client) for notice in replies.notices()])
        if len(replies.errors) == len(rows.owner):
            raise self._servers.error(next(iter(replies.errors.values())))
        return replies.judgement()


class _Replies:
    """What the scopes have decided so far about every row of a batch, as bits."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._own = [0] * len(rows.owner)  # from the client's own scope
        self._all = [0] * len(rows.owner)  # from all scopes asked
        self._is_open = [True] * len(rows.owner)  # whether the next scopes are asked about a row too
        self._closing = TRUSTED if rows.bets is None else TRUSTED | SPENT | DENIED
        self._home: set[tuple[int, str]] = set()  # clients by number, and the groups whose alarms concern them
        self._denials: dict[int, Denial] = {}
        self._notices: list[tuple[int, Notice]] = []
        self.errors: dict[int, object] = {}

    def parts(self, stage: tuple[bool, str]) -> list[tuple[Scope, list[int]]]:
        """The rows that each scope of a stage is asked about, in order, cut where the limits under a name change."""
        of_owner = [next((s for s in scopes if s.stage == stage), None) for scopes in self._rows.scopes]
        asked: dict[str, list[tuple[Scope, int]]] = {}
        for row, owner in enumerate(self._rows.owner):
            if self._is_open[row] and (scope := of_owner[owner]):
                asked.setdefault(scope.name, []).append((scope, row))
        return [
            (scope, [row for _, row in chosen])
            for of_name in asked.values()
            for scope, chosen in groupby(of_name, key=itemgetter(0))
        ]

    def groups(self, scope: Scope, rows: list[int]) -> list[str]:
        """In a client's own scope, its groups whose alarms may have consequences for it."""
        if scope.group or self._rows.bets is None:
            return []
        return [other.name for other in self._rows.scopes[self._rows.owner[rows[0]]] if other.group and other.enforce]

    def enforce(self, scope: Scope, rows: list[int]) -> bytes:
        """For every row whether the scope's alarm has consequences, a group's only for clients at home there (1), and
        whether an earlier scope, which is accused, answers it again (2)."""
        if not scope.group:
            return bytes([scope.enforce]) * len(rows)
        owner, again = self._rows.owner, [2 * (self._all[row] & REPEATED > 0) for row in rows]
        at_home = [scope.enforce and (owner[row], scope.name) in self._home for row in rows]
        return bytes([home + more for home, more in zip(at_home, again, strict=True)])

    def add(self, scope: Scope, rows: list[int], reply: list[Any]) -> None:
        """Note what the script returned for these rows."""
        for row, bits in zip(rows, reply[0], strict=True):
            if not scope.group:
                self._own[row] = bits
            self._all[row] |= bits
            if bits & self._closing:
                self._is_open[row] = False
        for group, is_home in zip(self.groups(scope, rows), reply[1], strict=True):
            if is_home:
                self._home.add((self._rows.owner[rows[0]], group))
        for row, *numbers in DENIAL.iter_unpack(reply[2]):
            used, limit, renews, at = map(int, numbers)
            self._denials[rows[row]] = Denial(scope.name, scope.group, used, limit, None if renews < 0 else renews, at)
        for head, coverage in reply[3:]:
            place, row, queries, wealth, extra = NOTICE.unpack(head)
            standing = Standing(
                scope.name,
                scope.group,
                int(queries),
                wealth,
                alarmed=reply[0][row] & ALARMED > 0,
                extra_answers=int(extra),
                coverage=unpack_coverage(coverage),
            )
            client = self._rows.clients[self._rows.owner[rows[row]]]
            self._notices.append((rows[row], Notice(NOTICES[place], standing, client)))

    def add_failure(self, rows: list[int], error: object) -> None:
        """Note that these rows may or may not be on record."""
        for row in rows:
            self.errors[row], self._is_open[row] = error, False
            self._own[row], self._all[row] = FAILED, SPENT

    def notices(self) -> tuple[Notice, ...]:
        """The notices in the order in which judging one row after the other would have brought them about."""
        return tuple(notice for _, notice in sorted(self._notices, key=itemgetter(0)))

    def judgement(self) -> Judgement:
        """The verdicts of all rows."""
        own, every = np.array(self._own), np.array(self._all)
        failed = np.zeros(len(own), np.bool_)
        failed[list(self.errors)] = True
        return Judgement(
            "".join([LETTERS[bits & LETTER] for bits in self._own]),
            (every & SPENT) > 0,
            ((every & (DENIED | REPEATED)) > 0) | ((own & ALARMED) > 0),
            (own & TRUSTED) > 0,
            failed,
            repeated=(every & (REPEATED | SPENT | DENIED)) == REPEATED,  # and no other scope has denied it
            cut_off=(every & CUT_OFF) > 0,
            denials=self._denials,
            notices=self.notices(),
        )
