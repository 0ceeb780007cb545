"""What operators read and do in a Redis ledger; judging is in ledger.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from queen.core.sensitivity import Floats
from queen.errors import LedgerError, LostStateError
from queen.ledger.base import BINDING, UNFINISHED, LedgerBase
from queen.ledger.redis import layout
from queen.ledger.redis.client import PAGE, RedisServers
from queen.ledger.redis.codec import (
    pack_budget,
    pack_event,
    tag,
    test_fields,
    unpack_event,
    unpack_records,
    unpack_standing,
    unpack_state,
)
from queen.ledger.redis.script import Script, ScriptCall, parse_address
from queen.ledger.rows import check_client
from queen.ledger.witness import ID, Witness, new_id
from queen.ledger.words import Budget, Event, Standing, check_event, make_event
from queen.sentinel.bets import Test

OPERATE = Script("operate.lua")
NUMBER = Script("number.lua")
NOW = Script("now.lua")
GROUP_FLAG, ALLOWED_FLAG = 4, 2
STOP_SECONDS = 3.0  # in which every server notices that its bundle was replaced (`serve.ledger_health`), and stops
MAX_WAITING = 10_000  # events that wait for a server to come back


class RedisAdmin(LedgerBase):
    """Standings, events and operators' orders; a scope is the hash `PREFIX:{TAG}`, where TAG is a hash of its name."""

    def __init__(
        self,
        url: str,
        *,
        allow_volatile: bool = False,
        timeout: float = 2.0,
        prefix: str = "queen",
        witness: str | PathLike[str] | None = None,
    ) -> None:
        self._prefix = layout.check_prefix(prefix)
        self._allow_volatile = allow_volatile
        self._waiting: list[bytes] = []
        self._numbers: dict[tuple[str, int], int] = {}  # of the tests used so far, by account and id
        self._lock = threading.Lock()
        self._refusal: LostStateError | None = None  # why nobody may be answered, since `verify` said so
        known = None
        if not allow_volatile or _hides_settings(url, timeout):
            known = Witness(parse_address(url)[0], None if witness is None else Path(witness))
        self._servers = RedisServers(url, timeout, prefix=prefix, witness=known)
        try:
            layout.claim(self._servers, prefix)
            self.check()
        except BaseException:
            self.close()
            raise

    def number_of(self, test: Test, *, claim: bool = True) -> int:
        """The number of a test among those of its account; a new one gets the next if it is to `claim` it."""
        if not claim:
            tests = f"{self._prefix}:tests"
            with self._servers.named_errors():
                own, count = self._servers.client_of(tests).hmget(tests, test_fields(test))
            return int(own) if own else int(count or 0) + 1
        number = self._numbers.get((test.account, test.id))
        if number is None:
            (number,) = self._servers.run(NUMBER, [ScriptCall((f"{self._prefix}:tests",), test_fields(test))])
            if self._servers.is_error(number):
                raise self._servers.error(number)
            self._numbers[test.account, test.id] = number
        return number

    def now(self) -> int:
        """The time by which budgets renew: the server's; in a cluster, that of one of them."""
        (now,) = self._servers.run(NOW, [ScriptCall((f"{self._prefix}:facts",), ())])
        if self._servers.is_error(now):
            raise self._servers.error(now)
        return int(now)

    def accept_clock(self, actor: str) -> None:
        """Let no use of a budget lie after now, scope by scope; see `Ledger`."""
        event = make_event("clock", Standing("ledger", group=False), actor=check_client(actor))
        layout.accept_clock(self._servers, self._prefix)
        self._add_event(event)

    def fact(self, name: str) -> str | None:
        """Something that is true of the whole ledger; see `Ledger`."""
        facts = f"{self._prefix}:facts"
        with self._servers.named_errors():
            value: bytes | None = self._servers.client_of(facts).hget(facts, name)
        return None if value is None else value.decode()

    def set_fact(self, name: str, value: str, *, replace: bool = True) -> str:
        """Say something of the whole ledger, and return what holds."""
        facts = f"{self._prefix}:facts"
        with self._servers.named_errors():
            client = self._servers.client_of(facts)
            (client.hset if replace else client.hsetnx)(facts, name, value)
            holds: bytes = client.hget(facts, name)
        return holds.decode()

    def rebind(self, binding: str, actor: str, *, name: str, forget_coverage: bool) -> None:
        """Say what the ledger is for from now on; see `Ledger`. Scopes forget their coverage one by one."""
        event = make_event("rebind", Standing(check_client(name), group=False), actor=check_client(actor))
        if forget_coverage:
            self.set_fact(BINDING, UNFINISHED + binding)
            time.sleep(STOP_SECONDS)  # servers of the old bundle still write
            layout.forget_coverage(self._servers, self._prefix)
        self.set_fact(BINDING, binding)
        if not self._log([event]):
            raise LedgerError(f"'{name}' has taken the ledger over, but that could not be logged yet")

    def check(self) -> None:
        """Raise `LedgerError` if nothing can be written, or what `verify` raises."""
        self.verify()
        self._servers.check(key=f"{self._prefix}:check")
        self._introduce()
        self._log(())

    def verify(self) -> None:
        """Raise `LostStateError` if state was lost, or could be; then nobody is judged until this passes."""
        try:
            self._servers.verify(allow_volatile=self._allow_volatile)
        except LostStateError as error:
            self._refusal = error
            raise
        if self._refusal is not None:
            self._refusal, self._numbers = None, {}  # of tests: another ledger may have been accepted

    def _refuse_lost(self) -> None:
        """Raise what `verify` or a connection has noticed."""
        if self._servers.epochs is not None and self._refusal is None:
            self._refusal = self._servers.epochs.witness.problem
        if self._refusal is not None:
            raise self._refusal

    def _introduce(self) -> None:
        """Give a new ledger an id; in a cluster, as soon as the server is there that holds it."""
        epochs = self._servers.epochs
        if epochs is not None and epochs.witness.id is None:
            try:
                epochs.witness.note(self.set_fact(ID, new_id(), replace=False), {})
                epochs.witness.save()
            except LedgerError:
                if not self._servers.is_cluster:
                    raise

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        squares = self._keys(check_client(client))[1]
        with self._servers.named_errors():
            records = unpack_records(self._servers.client_of(squares).hgetall(squares))
        return {label: np.array(points) for label, points in records.items()}

    def clients(self) -> Iterable[str]:
        """Clients on record, sorted; reads three fields of each."""
        names = set()
        for state, name, budget in self._scan("HMGET", "s", "n", "b"):
            flags, queries, _ = unpack_state(state, name.decode())
            if not flags & GROUP_FLAG and (queries or flags & ALLOWED_FLAG or budget is not None):
                names.add(name.decode())
        return sorted(names)

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client or group stands."""
        scope = self._keys(check_client(name), group=group)[0]
        with self._servers.named_errors():
            return unpack_standing(self._servers.client_of(scope).hgetall(scope), name, group=group)

    def each_standing(self) -> Iterator[Standing]:
        """Where all stand, one after the other, each as it was when it was read."""
        for fields in self._scan("HGETALL"):
            group = bool(fields[b"s"][0] & GROUP_FLAG)
            standing = unpack_standing(fields, fields[b"n"].decode(), group=group)
            if standing.on_record:
                yield standing

    def _scan(self, command: str, *arguments: str) -> Iterator[Any]:
        """The replies to a command on the hash of every scope."""
        with self._servers.named_errors():
            for client, keys in self._servers.scan(f"{self._prefix}:{{*}}"):
                pipeline = client.pipeline(transaction=False)
                for key in keys:
                    pipeline.execute_command(command, key, *arguments)
                yield from (reply for reply in pipeline.execute() if reply)

    def events(self, *, after: int = 0, newest: int | None = None) -> list[Event]:
        """Notices and what operators did, oldest first; read in pages, so that no script waits long."""
        log, readers = self._log_keys()
        events: list[Event] = []
        with self._servers.named_errors():
            count = self._servers.client_of(log).llen(log)
            first = after if newest is None else max(after, count - newest)
            for start in range(first, count, PAGE):
                listed = self._servers.client_of(log).lrange(log, start, min(start + PAGE, count) - 1)
                numbers = range(start + 1, start + 1 + len(listed))
                names = self._servers.client_of(readers).hmget(readers, list(numbers)) if listed else []
                events += [unpack_event(*one) for one in zip(numbers, listed, map(_decoded, names), strict=True)]
        return events

    def acknowledgements(self) -> dict[int, str]:
        """Who has read which event."""
        _, readers = self._log_keys()
        with self._servers.named_errors():
            stored = self._servers.client_of(readers).hgetall(readers)
        return {int(number): actor.decode() for number, actor in stored.items()}

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has read an event."""
        check_client(actor)
        log, readers = self._log_keys()
        with self._servers.named_errors():
            check_event(event, self._servers.client_of(log).llen(log))
            self._servers.client_of(readers).hset(readers, str(event), actor)

    def _operate(self, order: str, name: str, actor: str, *, group: bool = False, budget: Budget | None = None) -> None:
        check_client(actor)
        scope, _, _, *evidence = self._keys(check_client(name), group=group)
        call = ScriptCall((scope, *evidence), (order, name, int(group), *pack_budget(budget)))
        (before,) = self._servers.run(OPERATE, [call])
        if self._servers.is_error(before):
            raise self._servers.error(before)
        fields = dict(zip(before[::2], before[1::2], strict=True))
        if not self._log([make_event(order, unpack_standing(fields, name, group=group), actor=actor)]):
            raise LedgerError(f"'{order}' of '{name}' was done, but could not be logged yet; see that the log is back")

    def _add_event(self, event: Event) -> None:
        if not self._log([event]):
            raise LedgerError(f"'{event.what}' was done, but could not be logged yet; see that the log is back")

    def _log(self, events: Sequence[Event]) -> bool:
        """Append events to the log; those that cannot be written wait for the next call. Whether none waits."""
        with self._lock:
            waiting, self._waiting = [*self._waiting, *map(pack_event, events)], []
        if not waiting:
            return True
        log, _ = self._log_keys()
        try:
            with self._servers.named_errors():
                self._servers.client_of(log).rpush(log, *waiting)
        except LedgerError:
            with self._lock:
                self._waiting = [*waiting, *self._waiting][-MAX_WAITING:]
            return False
        return True

    def _keys(self, name: str, *, group: bool = False) -> tuple[str, str, str, str, str]:
        """The keys of a scope: its hash, its records by square, its memory of queries, its evidence in two tests."""
        scope = f"{self._prefix}:{{{tag(name, group=group)}}}"
        return scope, f"{scope}r", f"{scope}m", f"{scope}e", f"{scope}f"

    def _log_keys(self) -> tuple[str, str]:
        return f"{self._prefix}:events", f"{self._prefix}:acknowledged"

    def close(self) -> None:
        """Give back connections."""
        if self._servers.epochs:
            self._servers.epochs.witness.save()
        self._servers.close()


def _decoded(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


def _hides_settings(url: str, timeout: float) -> bool:
    """Whether the settings of a Redis cannot be read: then it is not known to forget, and what it holds is compared."""
    with closing(RedisServers(url, timeout)) as servers:
        return servers.hide_settings()
