"""Goal 4: whatever happens to the ledger, nobody gets an answer that is not on record."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa.serving.attempts import Tally, attempt, is_ready, total, wait_until
from qa.serving.scenario import Check
from queen.ledger import open_ledger
from tests.support.redis_server import RedisServer, redis_server
from tests.support.server import Server, started

OUTAGE = 1.5  # seconds, so that also the keys that are in Redis become too old
SETTLE = 40  # requests after a fault, of which some may still get 'overloaded': it just was
INFINITE = resource.RLIM_INFINITY


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong for a while; `exact` says that nothing is counted that was not answered."""

    name: str
    happens: Callable[[Server], AbstractContextManager[None]]
    exact: bool = True
    seconds: float = 0.0  # over which attempts are spread


def run(folder: Path, quick: bool) -> list[Check]:
    """Every fault on a server of its kind."""
    count = 60 if quick else 1000
    checks = [
        *with_file(folder / "file", count),
        *damaged(folder / "damaged", count // 10),
        *never_started(folder / "ro"),
    ]
    if not quick:
        checks += full_disk(folder / "full", count // 5)
    if shutil.which("redis-server"):
        return checks + with_redis(folder / "redis", count)
    return [*checks, Check("redis-server is not installed: nothing was tested with it", holds=True)]


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that forgives its ledger."""
    return with_file(folder / "file", 30, module="qa.broken.forgiving")


def with_file(folder: Path, count: int, *, module: str = "queen", most: int = 4) -> list[Check]:
    """A ledger in a file: out of room, locked, moved away, with an entry that makes no sense; the first `most`."""
    folder.mkdir()
    file = folder / "ledger.sqlite"
    faults = [
        Fault("no room left in the file", lambda server: _no_room(server, file)),
        Fault("file locked", lambda server: _locked(file)),
        Fault("file moved away", lambda server: _moved(file)),
        Fault("an entry damaged", lambda server: _nonsense(file)),
    ]
    with started(folder, ledger=f"sqlite:///{file}", module=module) as server:
        return survived(server, f"sqlite:///{file}", faults[:most], count)


def with_redis(folder: Path, count: int) -> list[Check]:
    """A ledger in Redis: stopped, killed and started again, out of memory, and no longer the primary."""
    faults = [
        Fault("Redis hangs", lambda server: _stopped(redis), exact=False, seconds=OUTAGE),
        Fault("Redis is killed and starts again", lambda server: _killed(redis), exact=False, seconds=OUTAGE),
        Fault("Redis is out of memory", lambda server: _set(redis, "maxmemory", "1mb", "0")),
        Fault("Redis takes no writes", lambda server: _demoted(redis)),
    ]
    redis = redis_server(folder / "data")
    try:
        with started(folder, ledger=redis.url) as server:
            return [_unasked(server, redis), *survived(server, redis.url, faults, count)]
    finally:
        redis.kill()


def _unasked(server: Server, redis: RedisServer) -> Check:
    """Health says that Redis is gone, and that it is back, also while nobody asks for answers."""
    with _killed(redis):
        red = wait_until(server, ready=False)
    return Check("Redis is gone while nobody asks", red is not None and wait_until(server, ready=True) is not None)


def survived(server: Server, url: str, faults: list[Fault], count: int) -> list[Check]:
    """Attempts before, during and after each fault, and what is on record at the end."""
    tallies, checks = [attempt(server, 6)], list[Check]()
    each = max(2, count // (2 * len(faults)))
    for fault in faults:
        with fault.happens(server):
            during = attempt(server, each, seconds=fault.seconds)
            red = _is_red(server, during)
        healed = wait_until(server, ready=True)
        settling, after = (attempt(server, number) if healed is not None else Tally() for number in (SETTLE, each))
        tallies += [during, settling, after]
        closed = red and during.statuses[503] > 0 and not during.without_retry and set(during.statuses) <= {200, 503}
        alone = healed is not None and set(after.statuses) == {200}
        health = f"{'red' if red else 'NOT RED'}, {'NEVER' if healed is None else f'{healed:.1f} s later'} green"
        checks.append(Check(fault.name, closed and alone, f"{during}; {health}; then {after}"))
    server.stop()
    statuses, recorded = total(tallies), queries_in(url)
    lost, exact = statuses[200] - recorded, all(fault.exact for fault in faults)
    summary = f"{max(lost, 0)}; {statuses.total()} attempts, {statuses[200]} answers, {recorded} on record"
    return [*checks, Check("answers that are not on record", lost == 0 if exact else lost <= 0, summary)]


def _is_red(server: Server, during: Tally) -> bool:
    """Whether the server says that it is not ready; where only some requests meet the fault, soon after one has."""
    for _ in range(3):
        if not is_ready(server):
            return True
        during.statuses += attempt(server, 2).statuses
    return False


def damaged(folder: Path, count: int) -> list[Check]:
    """A file overwritten while it is in use: no answers from then on."""
    folder.mkdir()
    file = folder / "ledger.sqlite"
    with started(folder, ledger=f"sqlite:///{file}") as server:
        before = attempt(server, 6)
        for path in folder.glob("ledger.sqlite*"):
            if path.suffix != ".server":
                _overwrite(path)
        after = attempt(server, count)
        red = not is_ready(server)
    ok = (
        before.answered == 6
        and after.answered == 0
        and red
        and set(after.statuses) == {503}
        and not after.without_retry
    )
    return [Check("file overwritten with noise", ok, f"{after}; {'red' if red else 'NOT RED'}")]


def never_started(folder: Path) -> list[Check]:
    """A file of noise, and one that may not be written, are refused at the start, by name."""
    folder.mkdir()
    file, noise = folder / "ledger.sqlite", folder / "noise.sqlite"
    open_ledger(f"sqlite:///{file}").close()
    noise.write_bytes(os.urandom(20_000))
    message = refusal(folder, f"sqlite:///{noise}")
    checks = [Check("file of noise at the start", "is not a database" in message and str(noise) in message, message)]
    with read_only(file) as possible:
        if not possible:
            return [*checks, Check("no read-only file can be made here (root without chattr): not tested", holds=True)]
        message = refusal(folder, f"sqlite:///{file}")
    return [*checks, Check("read-only file at the start", "readonly" in message and str(file) in message, message)]


def full_disk(folder: Path, count: int) -> list[Check]:
    """A file system of its own without room; where none can be mounted, the limit of a file's size stands for it."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "queen-qa", folder], check=False, capture_output=True
    )
    if made.returncode:
        return [
            Check("no file system can be mounted here: the limit of a file's size stands for a full disk", holds=True)
        ]
    try:
        file = folder / "ledger.sqlite"
        with started(folder.parent, ledger=f"sqlite:///{file}") as server:
            return survived(server, f"sqlite:///{file}", [Fault("disk full", lambda server: _filled(folder))], count)
    finally:
        subprocess.run(["umount", folder], check=False)


def queries_in(url: str) -> int:
    """Queries of alice on record, as a fresh look at the ledger says."""
    ledger = open_ledger(url)
    try:
        return ledger.standing("alice").queries
    finally:
        ledger.close()


def refusal(folder: Path, url: str, **options: Any) -> str:
    """What a server says that does not start; "" if it does."""
    try:
        with started(folder, ledger=url, home=folder / "other", patience=60, **options):
            return ""
    except AssertionError as error:
        return " ".join(str(error).split())[-300:]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def _no_room(server: Server, file: Path) -> Iterator[None]:
    """Files of the server's process may not grow: writing fails as on a full disk."""
    log = file.with_name(f"{file.name}-wal")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, INFINITE))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (INFINITE, INFINITE))


@contextmanager
def _filled(folder: Path) -> Iterator[None]:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def _moved(file: Path) -> Iterator[None]:
    away = file.rename(file.with_name("away"))
    try:
        yield
    finally:
        away.rename(file)


@contextmanager
def _nonsense(file: Path) -> Iterator[None]:
    other = sqlite3.connect(file, isolation_level=None)
    rows = other.execute("SELECT purses, id FROM winnings").fetchall()
    other.execute("UPDATE winnings SET purses = x'01'")
    try:
        yield
    finally:
        other.executemany("UPDATE winnings SET purses = ? WHERE id = ?", rows)
        other.close()


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))


@contextmanager
def read_only(file: Path) -> Iterator[bool]:
    """Whether nobody, root included, may write the file meanwhile."""
    if os.geteuid() == 0:
        possible = subprocess.run(["chattr", "+i", file], check=False, capture_output=True).returncode == 0
    else:
        file.chmod(0o400)
        possible = True
    try:
        yield possible
    finally:
        if os.geteuid() == 0:
            subprocess.run(["chattr", "-i", file], check=False, capture_output=True)


@contextmanager
def _stopped(redis: RedisServer) -> Iterator[None]:
    redis.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        redis.process.send_signal(signal.SIGCONT)


@contextmanager
def _killed(redis: RedisServer) -> Iterator[None]:
    redis.kill()
    try:
        yield
    finally:
        redis.start()


@contextmanager
def _set(redis: RedisServer, name: str, value: str, normal: str) -> Iterator[None]:
    with redis.client() as client:
        client.config_set(name, value)
        try:
            yield
        finally:
            client.config_set(name, normal)


@contextmanager
def _demoted(redis: RedisServer) -> Iterator[None]:
    """A replica of nobody: as after a failover that a client has not heard of."""
    with redis.client() as client:
        client.replicaof("127.0.0.1", 1)
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")
