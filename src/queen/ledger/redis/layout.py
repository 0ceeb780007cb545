"""Which layout the keys of a Redis ledger have: data of another version is refused, and older data can be migrated.

`PREFIX:layout` holds the number; the first layout had none. Scopes change one by one, each in one step, so a migration
that was interrupted goes on where it stopped. Until it is done no ledger opens, and the scripts of either version
refuse scopes of the other, whatever is running.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from queen.errors import LedgerError, OptionError
from queen.ledger.redis.client import RedisServers
from queen.ledger.redis.script import Script, ScriptCall
from queen.sentinel.sketch import Memory

LAYOUT = 2
MIGRATE = Script("migrate.lua")
FORGET_COVERAGE = Script("forget_coverage.lua")
ACCEPT_CLOCK = Script("accept_clock.lua")


def check_prefix(prefix: object) -> str:
    """A prefix that means itself in patterns and has no part that a cluster would hash."""
    if not isinstance(prefix, str) or not re.fullmatch(r"[\w.:-]+", prefix, re.ASCII):
        raise OptionError(f"prefix must be letters, digits and . : _ -, got {prefix!r}")
    return prefix


def claim(servers: RedisServers, prefix: str) -> None:
    """Mark an empty place as one of this layout; `LedgerError` where there is data of another one.

    In a cluster the server that knows may be down; the others are of use all the same, since scripts refuse what was
    written in another layout.
    """
    key = f"{prefix}:layout"
    try:
        with servers.named_errors():
            client = servers.client_of(key)
            number = client.get(key)
            if number is None and not _has_data(servers, prefix):
                client.set(key, LAYOUT, nx=True)
                number = client.get(key)
    except LedgerError:
        if servers.is_cluster:
            return
        raise
    if number is None:
        raise LedgerError(
            f"ledger '{servers.name}' was written by an older version of queen: stop its servers, then run "
            f"queen migrate {servers.name} --prefix {prefix}"
        )
    _refuse_newer(servers, number)


def _refuse_newer(servers: RedisServers, number: bytes) -> None:
    if int(number) != LAYOUT:
        raise LedgerError(
            f"ledger '{servers.name}' has layout {int(number)}, this version of queen reads {LAYOUT}: update queen"
        )


def _has_data(servers: RedisServers, prefix: str) -> bool:
    """Whether there is a scope; where nobody ever opened a ledger, without looking through all keys of the server."""
    if not servers.is_cluster and not servers.client_of(prefix).exists(f"{prefix}:check"):
        return False
    return any(keys for keys in scopes(servers, prefix))


def scopes(servers: RedisServers, prefix: str) -> Iterator[list[bytes]]:
    """The keys of all clients and groups, in pages."""
    for _, keys in servers.scan(f"{prefix}:{{*}}"):
        yield keys


@dataclass(frozen=True)
class Migrated:
    """How many clients and groups there are, and how many of them had the older layout."""

    scopes: int
    migrated: int


def migrate(
    url: str,
    *,
    prefix: str = "queen",
    timeout: float = 30.0,
    allow_volatile: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> Migrated:
    """Bring all data under a prefix to this layout; calls `advance` after every client or group.

    Alarms, events, budgets, the allow-list, coverage, records, counts and the memory of queries stay; wealth starts
    anew. Doing it again changes nothing.
    """
    check_prefix(prefix)
    with closing(RedisServers(url, timeout)) as servers:
        servers.verify(allow_volatile=allow_volatile)
        servers.check(key=f"{prefix}:check")
        total, migrated, key = 0, 0, f"{prefix}:layout"
        with servers.named_errors():
            _refuse_newer(servers, servers.client_of(key).get(key) or b"%d" % LAYOUT)
            for reply in _run_on_all(servers, prefix, MIGRATE, "m", Memory.CAPACITY):
                total, migrated = total + 1, migrated + reply
                advance()
            servers.client_of(key).set(key, LAYOUT)
        return Migrated(total, migrated)


def forget_coverage(servers: RedisServers, prefix: str) -> None:
    """Drop coverage and records of all clients and groups, one by one; nothing happens to those that have none."""
    with servers.named_errors():
        for _ in _run_on_all(servers, prefix, FORGET_COVERAGE, "r"):
            pass


def accept_clock(servers: RedisServers, prefix: str) -> None:
    """Let no use of a renewing budget lie after now, one client or group after the other."""
    with servers.named_errors():
        for _ in _run_on_all(servers, prefix, ACCEPT_CLOCK, "r"):
            pass


def _run_on_all(servers: RedisServers, prefix: str, script: Script, part: str, *arguments: int) -> Iterator[int]:
    """Run a script on the hash of every scope and on the part whose key ends so; for each, the number it returns."""
    for page in scopes(servers, prefix):
        names = [name.decode() for name in page]
        for reply in servers.run(script, [ScriptCall((name, f"{name}{part}"), arguments) for name in names]):
            if servers.is_error(reply):
                raise LedgerError(f"ledger '{servers.name}' failed: {reply}. Run it again: it goes on from here")
            yield int(reply)
