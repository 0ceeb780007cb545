"""Time that tests set: for the ledgers of a process, and for Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest
import redis

from queen.ledger import Ledger, MemoryLedger, RedisLedger, SqliteLedger
from queen.ledger.clock import LedgerClock
from queen.ledger.redis.script import Script
from tests.support.redis_server import shared_server

MIDNIGHT = 1_794_960_000  # a Wednesday, 2026-11-18 00:00 UTC
KEY = "time of the tests"
_numbers = count()


class SetTime(LedgerClock):
    """A clock that shows what it is set to, even if that goes back."""

    def __init__(self, now: int = MIDNIGHT) -> None:
        super().__init__()
        self._now = now

    def now(self) -> int:
        return self._now

    def set(self, now: int) -> None:
        self._now = now


class TwoClocks:
    """A wall clock that may be set, and a monotonic one that only goes on."""

    def __init__(self, wall: float = MIDNIGHT) -> None:
        self.monotonic, self.ahead = 1000.0, wall - 1000.0

    def make(self) -> LedgerClock:
        """The clock of a process that starts now."""
        return LedgerClock(wall=lambda: self.monotonic + self.ahead, monotonic=lambda: self.monotonic)


@contextmanager
def redis_time() -> Iterator[Callable[[int], None]]:
    """Let the scripts of Redis ledgers read the time from a key of the server, and set it: set(now)."""
    text = Script("").__class__.text.func  # type: ignore[attr-defined]

    def steered(script: Script) -> str:
        return str(text(script)).replace("redis.call('TIME')", f"({{redis.call('GET', '{KEY}')}})")

    with pytest.MonkeyPatch.context() as patch, closing(redis.Redis.from_url(shared_server().url)) as server:
        sha = Script.__dict__["sha"].func
        patch.setattr(Script, "text", property(steered))
        patch.setattr(Script, "sha", property(sha))
        yield lambda now: server.set(KEY, now)


class Restarting:
    """A ledger that is closed and opened again by `restart`, in another process for all that it knows."""

    def __init__(self, open_it: Callable[[], Ledger]) -> None:
        self._open = open_it
        self.ledger = open_it()

    def restart(self) -> None:
        self.ledger.close()
        self.ledger = self._open()

    def close(self) -> None:
        self.ledger.close()


def at_set_time(clock: SetTime, folder: Path) -> dict[str, Restarting]:
    """One of every store: all go by the clock, if `redis_time` is set along with it. Memory survives its restarts."""
    memory, prefix = MemoryLedger(clock=clock), f"time-{next(_numbers)}"
    file = folder / f"{prefix}.db"
    return {
        "memory": Restarting(lambda: memory),
        "sqlite": Restarting(lambda: SqliteLedger(file, clock=clock, any_clock=True)),
        "redis": Restarting(lambda: RedisLedger(shared_server().url, prefix=prefix, timeout=30)),
    }
