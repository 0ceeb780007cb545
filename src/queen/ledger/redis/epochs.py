"""The epochs of a Redis ledger: counters on every server, compared with the witness on each connection.

Every batch raises one counter of each server that it writes to, after its scripts: the append-only file is read from
the front, so where the counter is there, all before it is, too. A cluster has many counters, spread over its slots, so
that every server holds some; they move with their slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from queen.errors import LedgerError
from queen.ledger.witness import ACCEPTED, EVERY, ID, Witness

SLOTS = 16384
COUNTERS = 64  # of a cluster: each lies in its own 64th of the slots
# Raise a counter, unless it is below what it was: then it stays as it is, so that it cannot catch up unnoticed.
RISE = """local epoch = tonumber(redis.call('GET', KEYS[1]) or '0')
if epoch < tonumber(ARGV[1]) then return -epoch end
return redis.call('INCR', KEYS[1])"""


@cache
def counters(key_slot: Callable[[bytes], int]) -> tuple[str, ...]:
    """The names of the counters: the least number that lies in each part of the slots."""
    names: dict[int, str] = {}
    number = 0
    while len(names) < COUNTERS:
        names.setdefault(key_slot(str(number).encode()) * COUNTERS // SLOTS, str(number))
        number += 1
    return tuple(names[part] for part in range(COUNTERS))


class RedisEpochs:
    """Compares and raises the epochs of the ledger under a prefix; `redis` is the module redis-py."""

    def __init__(self, redis: Any, prefix: str, witness: Witness) -> None:
        self.witness = witness
        self._facts, self._prefix = f"{prefix}:facts", prefix
        self._errors = redis.exceptions
        self._all = counters(redis.crc.key_slot)

    def key(self, part: str) -> str:
        """The key of a counter."""
        return f"{self._prefix}:epoch:{{{part}}}"

    @property
    def parts(self) -> Sequence[str]:
        """All counters of a cluster; a single server uses the first."""
        return self._all

    def greet(self, connection: Any) -> None:
        """Compare what a server holds as soon as a connection to it is open, before anything else is asked there."""
        before = self.witness.epochs()
        connection.send_packed_command(connection.pack_commands(self._questions(before)))
        replies: list[Any] = []
        for _ in self._questions(before):
            try:
                replies.append(connection.read_response())
            except self._errors.ResponseError as error:
                if not self._is_elsewhere(error):
                    raise  # it will not be used before we know
                replies.append(error)
        try:
            self._compare(before, replies)
        except LedgerError:
            connection.disconnect()  # redis-py does so after its own errors only
            raise

    def verify(self, clients: Sequence[Any], errors: tuple[type[Exception], ...], *, is_cluster: bool) -> None:
        """Compare what all servers hold that answer; if all do, the witness has no complaint any more."""
        answers = []
        for client in clients:
            before = {part: self.witness.epoch(part) for part in (self._all if is_cluster else self._all[:1])}
            pipeline = client.pipeline(transaction=False)
            for command in self._questions(before):
                pipeline.execute_command(*command)
            try:
                replies = pipeline.execute(raise_on_error=False)
            except errors:
                continue
            if all(self._is_elsewhere(reply) for reply in replies if isinstance(reply, Exception)):
                answers.append((before, replies))
        for before, replies in sorted(answers, key=lambda answer: isinstance(answer[1][0], Exception)):  # facts first
            self._compare(before, replies)
        if len(answers) == len(clients):
            self.witness.problem = None
        if self.witness.problem is not None:
            raise self.witness.problem
        self.witness.save()

    def _is_elsewhere(self, reply: Any) -> bool:
        """Whether another server of a cluster holds what was asked for, or, where its slots are lost, none."""
        errors = self._errors
        if isinstance(reply, errors.ClusterDownError):  # else the cluster is down, and this one will tell later
            return "not served" in str(reply)
        return isinstance(reply, errors.MovedError | errors.AskError | errors.TryAgainError)

    def _questions(self, parts: Iterable[str]) -> list[tuple[str, ...]]:
        return [("HMGET", self._facts, ID, ACCEPTED), *(("GET", self.key(part)) for part in parts)]

    def _compare(self, before: Mapping[str, int], replies: Sequence[Any]) -> None:
        """Compare the id and the counters that a server holds, and remember them; errors are those held elsewhere."""
        facts, *values = replies
        ledger_id = None
        if not isinstance(facts, Exception):
            ledger_id, accepted = (value and value.decode() for value in facts)
            self.witness.meet(ledger_id, accepted)
        numbers = {part: value for part, value in zip(before, values, strict=True) if not isinstance(value, Exception)}
        epochs = {part: int(value or 0) for part, value in numbers.items()}
        for part, epoch in epochs.items():
            self.witness.compare(part, epoch, before[part])
        self.witness.note(ledger_id, epochs)

    def add_rise(self, pipeline: Any, part: str) -> int:
        """Let the last command of a pipeline raise a counter; returns what it must have been at least."""
        before = self.witness.epoch(part)
        pipeline.execute_command("EVAL", RISE, 1, self.key(part), before)
        return before

    def check_rise(self, part: str, before: int, reply: Any) -> bool:
        """Compare the reply to `add_rise`, and remember it; False if the counter is held elsewhere."""
        if isinstance(reply, Exception):
            if self._is_elsewhere(reply):
                return False
            raise reply
        if reply <= 0:
            self.witness.compare(part, -reply, before)
        self.witness.note(None, {part: reply})
        self.witness.save(every=EVERY)
        return True
