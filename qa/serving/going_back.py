"""Goal 23: a ledger that has lost state is refused by name, and nobody regains honest answers by it."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from typer.testing import CliRunner

from qa.serving.attempts import wait_until
from qa.serving.scenario import Check
from queen import cli
from queen.errors import LedgerError
from queen.ledger import open_ledger
from queen.serve.service import Service
from queen.serve.settings import read_settings
from tests.support.redis_server import RedisServer, redis_cluster, redis_server
from tests.support.server import Server, started
from tests.support.serving import noise, small_bundle
from tests.support.waiting import wait_for

SECONDS = 20.0  # until a loss must be noticed that no request meets; half a second on an idle machine
ROWS = 20  # of a thief's request before the alarm
LOG_LOST, VOLATILE = r"-wal\) was deleted while in use", "is not durable: appendonly is 'no'"
BACK = "went back in time|is empty|is not the same ledger as before"


def run(folder: Path, quick: bool) -> list[Check]:
    """All of it on servers that remember their ledger."""
    count = 25 if quick else 250
    checks = with_file(folder, count, quick=quick)
    if not shutil.which("redis-server"):
        return [*checks, Check("redis-server is not installed: nothing was tested with it", holds=True)]
    checks += with_redis(folder, count, quick=quick)
    return checks if quick else checks + with_cluster(folder, count)


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that does not."""
    module = "qa.broken.oblivious"
    file = folder / "ledger.sqlite"
    with started(folder, ledger=f"sqlite:///{file}", module=module) as server:
        thief = Thief(server)
        backup = back_up(file)
        thief.get_accused()
        server.stop(signal.SIGKILL)
    put_back(file, backup)
    with started(folder, ledger=f"sqlite:///{file}", module=module) as server:
        thief.server = server
        checks = [thief.gets_nothing("older copy", 25, BACK)]
        file.with_name("ledger.sqlite-wal").unlink()
        return [*checks, thief.gets_nothing("log deleted", 25, LOG_LOST)]


class Thief:
    """A client that will be accused, on one server after the other."""

    def __init__(self, server: Server) -> None:
        self.server, self.key = server, server.new_key("thief")
        self._seed = 1
        if self._ask(noise(2, seed=0)) != 200:
            raise AssertionError("the thief was accused too early")

    def _ask(self, x: object) -> int:
        status: int = self.server.infer(x, self.key)[0]  # type: ignore[arg-type]
        return status

    def renew_key(self) -> bool:
        """Get another key, for the store of keys may be as old as the ledger; False if that is not possible now."""
        try:
            self.key = self.server.new_key("thief")
        except LedgerError:
            return False
        return True

    def get_accused(self) -> None:
        """Ask foreign questions until there is no answer."""
        for _ in range(40):
            self._seed += 1
            if self._ask(noise(ROWS, seed=self._seed)) == 429:
                return
        raise AssertionError("the thief was never accused")

    def ask_anew(self, count: int) -> Counter[int]:
        """The statuses of so many questions that were never asked before."""
        statuses: Counter[int] = Counter()
        for _ in range(count):
            self._seed += 1
            statuses[self._ask(noise(1, seed=self._seed))] += 1
        return statuses

    def is_still_accused(self, name: str, count: int) -> Check:
        """Whether a healthy server refuses the thief as before."""
        statuses, ready = self.ask_anew(count), wait_until(self.server, ready=True) is not None
        return Check(name, set(statuses) == {429} and ready, f"{shown(statuses)}; {'ready' if ready else 'NOT READY'}")

    def gets_nothing(self, name: str, count: int, why: str) -> Check:
        """Whether the thief has no honest answer, the server says that it is not ready, and the log says why."""
        first = self.ask_anew(count)
        red = wait_until(self.server, ready=False, seconds=SECONDS if not first[200] else 1.0)
        after = self.ask_anew(count)
        statuses = first + after
        errors = [line.get("error", "") for line in reversed(self.server.lines())]
        line = next((error for error in errors if re.search(why, error)), "")
        health = "NOT RED" if red is None else "red"
        named = line[:120] if line else "NOT NAMED"
        holds = not statuses[200] and red is not None and bool(line)
        return Check(name, holds, f"{statuses[200]} honest answers of {shown(statuses)}; {health}; {named}")


def shown(statuses: Counter[int]) -> str:
    """Statuses for people."""
    return ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))


def with_file(folder: Path, count: int, *, quick: bool) -> list[Check]:
    """A ledger in a file."""
    file, home = folder / "ledger.sqlite", folder / "home"
    url = f"sqlite:///{file}"
    with started(folder, ledger=url) as server:
        thief = Thief(server)
        backup = back_up(file)
        thief.get_accused()
        fold_log(file)  # else the log alone would hold all that came after the backup
        time.sleep(1.1)  # an epoch
        checks = [thief.is_still_accused("accused, file", count)]
        time.sleep(0.6)  # the witness is written
        server.stop(signal.SIGKILL)
    crashed = Files(file)
    losses: dict[str, Callable[[], None]] = {
        "file removed": lambda: remove(file),
        "older copy": lambda: put_back(file, backup),
        "older copy before a log that stays": lambda: put_back(file, backup, keep_log=True),
        "log deleted after a kill": lambda: file.with_name("ledger.sqlite-wal").unlink(),
    }
    for name, lose in losses.items():
        crashed.restore()
        lose()
        checks.append(is_refused(name, folder, home, url, quick=quick))
    crashed.restore()
    with started(folder, ledger=url) as server:
        thief.server = server
        checks.append(thief.is_still_accused("the newer copy is put back", count))
        file.with_name("ledger.sqlite-wal").unlink()
        checks.append(thief.gets_nothing("log deleted while running", count, LOG_LOST))
        server.stop(signal.SIGKILL)
    with closing(open_ledger(url)) as ledger:
        checks.append(Check("nothing was lost with that log", ledger.standing("thief").alarmed))
    put_back(file, backup)
    return [*checks, accepted_at_start(folder, home, url)]


def with_redis(folder: Path, count: int, *, quick: bool) -> list[Check]:
    """A ledger in Redis."""
    redis, home = redis_server(folder / "redis"), folder / "redis-home"
    try:
        with started(folder, ledger=redis.url, home=home) as server:
            thief = Thief(server)
            backup = shutil.copytree(redis.folder / "aof", folder / "aof")
            thief.get_accused()
            checks = [thief.is_still_accused("accused, Redis", count), made_volatile(thief, redis, count)]
            losses = (("Redis with an older file", backup, "went back in time"), ("Redis empty", None, "is empty"))
            for name, copy, why in losses:
                restart(redis, copy)
                thief.renew_key()
                checks += [thief.gets_nothing(name, count, why), accepted_while_running(server, redis.url, name)]
                thief.get_accused()
            newest = shutil.copytree(redis.folder / "aof", folder / "newest")
            thief.ask_anew(2)
            time.sleep(1.1)  # the witness is written
            server.stop(signal.SIGKILL)
        restart(redis, newest)
        return [*checks, is_refused("Redis with an older file at the start", folder, home, redis.url, quick=quick)]
    finally:
        redis.kill()


def with_cluster(folder: Path, count: int) -> list[Check]:
    """One of the servers of a cluster: all are refused, for what is lost there may concern anybody."""
    servers = redis_cluster(folder / "cluster", 3)
    try:
        with started(folder, ledger=servers[0].url, home=folder / "cluster-home") as server:
            thief = Thief(server)
            copies = [shutil.copytree(one.folder / "aof", one.folder / "older") for one in servers]
            thief.get_accused()
            with closing(open_ledger(servers[0].url)) as ledger:
                scope = ledger._keys("thief")[0]  # type: ignore[attr-defined]
                port = ledger._servers._cluster.get_node_from_key(scope).port  # type: ignore[attr-defined]
            holder = next(one for one in servers if one.port == port)
            restart(holder, copies[servers.index(holder)])
            wait_for(thief.renew_key)  # once the cluster is up again
            return [thief.gets_nothing("one server of a cluster with an older file", count, BACK)]
    finally:
        for one in servers:
            one.kill()


def made_volatile(thief: Thief, redis: RedisServer, count: int) -> Check:
    """`appendonly no` on a running server, and then set right again."""
    with redis.client() as client:
        client.config_set("appendonly", "no")
        during = thief.gets_nothing("appendonly no", count, VOLATILE)
        client.config_set("appendonly", "yes")
    after = thief.is_still_accused("", count) if wait_until(thief.server, ready=True) is not None else None
    holds = during.holds and after is not None and after.holds
    return Check(during.name, holds, f"{during.found}; then {after.found if after else 'NEVER READY'}")


def accepted_while_running(server: Server, url: str, name: str) -> Check:
    """Whether `queen ledger accept` makes a server that runs answer again."""
    error = next(line["error"] for line in reversed(server.lines()) if re.search(BACK, line.get("error", "")))
    said = accept(error, url)
    ready = wait_until(server, ready=True)
    return Check(f"accepted: {name}", ready is not None, f"{said}; {'NEVER READY' if ready is None else 'ready'}")


def accepted_at_start(folder: Path, home: Path, url: str) -> Check:
    """Whether `queen ledger accept` helps where the server does not even start."""
    said = accept(refusal(folder, home, url, quick=True), url)
    with started(folder, ledger=url, home=home) as server:
        ready = wait_until(server, ready=True) is not None
        server.stop()
    with closing(open_ledger(url)) as ledger:
        logged = [event.actor for event in ledger.events() if event.what == "accept"]
    return Check("accepted: older copy", ready and logged == ["qa"], f"{said}; logged by {', '.join(logged)}")


def accept(error: str, url: str) -> str:
    """Do what the error says."""
    [(lost, home)] = re.findall(r"queen ledger accept ([0-9a-f]{16}) .*--home '([^']*)'", error)
    done = CliRunner().invoke(cli.app, ["ledger", "accept", lost, "--ledger", url, "--home", home, "--actor", "qa"])
    return " ".join((done.output or repr(done.exception)).split())


def is_refused(name: str, folder: Path, home: Path, url: str, *, quick: bool) -> Check:
    """Whether the server does not start, and says why."""
    message = refusal(folder, home, url, quick=quick)
    return Check(
        f"{name}: refused", bool(re.search(f"({BACK}).*queen ledger accept", message)), message[-330:] or "STARTED"
    )


def refusal(folder: Path, home: Path, url: str, *, quick: bool) -> str:
    """What a server says that does not start, "" if it does; quick: in this process."""
    try:
        if quick:
            given = {"bundle": small_bundle(), "home": home, "ledger": url, "port": 0}
            Service.open(read_settings(given)).guard.ledger.close()
        else:
            with started(folder, ledger=url, home=home):
                return ""
    except (LedgerError, AssertionError) as error:
        return " ".join(str(error).split())
    return ""


class Files:
    """The files of a ledger as a killed server left them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._copies = {path.name: path.read_bytes() for path in ledger_files(file)}

    def restore(self) -> None:
        """Put them back."""
        remove(self._file)
        for name, content in self._copies.items():
            self._file.with_name(name).write_bytes(content)


def ledger_files(file: Path) -> list[Path]:
    """The file, its log and its index, as far as they are there."""
    return [path for suffix in ("", "-wal", "-shm") if (path := file.with_name(file.name + suffix)).exists()]


def remove(file: Path) -> None:
    """Remove a ledger."""
    for path in ledger_files(file):
        path.unlink()


def back_up(file: Path) -> Path:
    """A copy of a ledger that is in use, as a backup program makes it."""
    copy = file.with_name("backup.sqlite")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def fold_log(file: Path) -> None:
    """Let SQLite fold the log of a ledger in use into its file, as it does from time to time."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(FULL)")


def put_back(file: Path, backup: Path, *, keep_log: bool = False) -> None:
    """Put a backup in the place of a ledger."""
    if not keep_log:
        remove(file)
    shutil.copy(backup, file)


def restart(redis: RedisServer, aof: Path | None) -> None:
    """Kill a Redis and start it at once with another append-only file, or none."""
    redis.kill()
    shutil.rmtree(redis.folder / "aof")
    if aof is not None:
        shutil.copytree(aof, redis.folder / "aof")
    redis.start()
