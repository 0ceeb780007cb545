"""Goal 26: every released version of bundles and ledgers is read, migrated, or refused by name with the way out."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from qa.serving.scenario import Check, none_of
from queen import load
from queen.bundle.store import FORMAT
from queen.errors import BundleError, LedgerError
from queen.ledger import Ledger, RedisLedger, SqliteLedger
from queen.ledger.redis import client as redis_client
from queen.ledger.redis.layout import LAYOUT, Migrated, migrate
from queen.ledger.sqlite import open as sqlite_open
from queen.ledger.sqlite.open import MIGRATIONS, SCHEMA_VERSION
from tests.support import redis_server
from tests.support.bundles import read_manifest, sign_manifest
from tests.support.first_layout import FirstScope, write_event
from tests.support.old_files import DUMPS, old_file
from tests.support.serving import small_bundle

NEVER_READ = (1, 2)  # schemas from before the oldest that this version migrates
# Of some clients in every old file: whether they are accused, and whether they are trusted.
KNOWN = {"bob": (True, False), "dave": (False, True)}
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "team:1")
SCOPES = [
    FirstScope("asked", queries=5, extra=3, wealth=(1.5,) * 20, coverage={1: [(0.1, 0.1)], 70_000: [(0.0, 0.0)]}),
    FirstScope("accused", queries=9, alarmed=True, wealth=(3.0,) * 9),
    FirstScope("trusted", allowed=True),
    FirstScope("given", queries=1, budget=(0.25, 7)),
    FirstScope("team:1", group=True, queries=30, extra=2, alarmed=True, wealth=(9.0,)),
]
Migration = Callable[[sqlite3.Connection, str], None]


def run(folder: Path, quick: bool) -> list[Check]:
    """All versions of files, of Redis and of bundles."""
    checks = [*bundles(folder), *files(folder), *killed_files(folder, kills=0 if quick else 100)]
    if shutil.which("redis-server"):
        server = redis_server.redis_server(folder / "redis")
        try:
            checks += layouts(server)
        finally:
            server.kill()
    return checks


def control(folder: Path, quick: bool) -> list[Check]:
    """The same kills during a migration that commits every statement by itself."""

    def run_without_transaction(db: sqlite3.Connection, statements: str) -> None:
        for statement in statements.split(";"):
            db.execute(statement)
            db.execute("COMMIT")
            db.execute("BEGIN IMMEDIATE")

    return killed_files(folder, kills=0, migration=run_without_transaction)


def bundles(folder: Path) -> list[Check]:
    """Bundles of every format, older ones by their number: it is read before anything else."""
    checks = []
    for number in range(1, FORMAT + 2):
        copy = folder / f"format-{number}"
        shutil.copytree(small_bundle(), copy)
        sign_manifest(copy, read_manifest(copy) | {"format": number})
        message = message_of(BundleError, lambda copy=copy: load(copy))
        way_out = "" if number == FORMAT else "queen protect" if number < FORMAT else "update queen"
        holds = message == "" if number == FORMAT else f"format {number}" in message and way_out in message
        checks.append(Check(f"bundle of format {number}", holds, message or "read"))
    return checks


def files(folder: Path) -> list[Check]:
    """Files of every schema: migrated with all that operators know, or refused and left as they were."""
    checks = []
    for version in DUMPS:
        path = old_file(folder / f"schema-{version}.sqlite", version)
        with closing(SqliteLedger(path)) as ledger:
            wrong = differences(ledger)
        checks.append(none_of(f"file of schema {version}: lost in the migration", wrong, len(NAMES)))
        checks.append(Check(f"file of schema {version}: is now {SCHEMA_VERSION}", version_of(path) == SCHEMA_VERSION))
    for version in (*NEVER_READ, SCHEMA_VERSION + 1):
        path = old_file(folder / f"schema-{version}.sqlite", dump=DUMPS[3])
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {version}")
        before = content(path)
        message = message_of(LedgerError, lambda path=path: SqliteLedger(path).close())
        way_out = "update queen" if version > SCHEMA_VERSION else "begin a new file"
        holds = f"schema {version}" in message and way_out in message and content(path) == before
        checks.append(Check(f"file of schema {version}: refused and left alone", holds, message))
    return checks


def killed_files(folder: Path, *, kills: int, migration: Migration | None = None) -> list[Check]:
    """SIGKILL after every statement of every migration, and at `kills` random moments of a long one."""
    checks = []
    for version in DUMPS:
        wrong = list[str]()
        statements = len(MIGRATIONS[version].split(";"))
        for last in range(statements):
            path = old_file(folder / f"killed-{version}-{last}.sqlite", version)
            before = content(path)
            in_child(lambda path=path, last=last: _killed_at(path, last, migration))
            wrong += [f"after statement {last + 1}: {what}" for what in half_migrated(path, before)]
        name = f"schema {version} to {SCHEMA_VERSION}, killed after each statement: not whole"
        checks.append(none_of(name, wrong, statements))
    if kills:
        checks.append(_killed_any_time(folder, kills))
    return checks


def _killed_at(path: Path, last: int, migration: Migration | None) -> None:
    """Open an old file and die after a statement of its migration."""
    run_all = migration or sqlite_open._run

    def run_some(db: sqlite3.Connection, statements: str) -> None:
        run_all(db, ";".join(statements.split(";")[: last + 1]))
        os.kill(os.getpid(), signal.SIGKILL)

    sqlite_open._run = run_some
    SqliteLedger(path)


def _killed_any_time(folder: Path, kills: int) -> Check:
    """Kill the migration of many clients at a random moment, each time of the same file."""
    wrong, big = list[str](), _big_file(folder / "big.sqlite")
    begin = time.monotonic()
    whole = folder / "whole.sqlite"
    shutil.copy(big, whole)
    SqliteLedger(whole).close()
    seconds = time.monotonic() - begin
    for number in range(kills):
        path = folder / "killed.sqlite"
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=True)
        shutil.copy(big, path)
        before = content(path)
        child = os.fork()
        if child == 0:
            SqliteLedger(path)
            os._exit(0)
        time.sleep(secrets.randbelow(1000) / 1000 * seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        wrong += [f"kill {number}: {what}" for what in half_migrated(path, before)]
    return none_of("schema 3, many clients, killed at random moments: not whole", wrong, kills)


def _big_file(path: Path, clients: int = 20_000) -> Path:
    """A file of schema 3 with many more clients than the dump has."""
    old_file(path, 3)
    with closing(sqlite3.connect(path)) as db:
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(scope)") if name != "id"]
        db.execute(
            f"WITH RECURSIVE number(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM number WHERE i < {1000 + clients}) "
            f"INSERT INTO scope SELECT i, {', '.join(columns)} FROM number, scope WHERE scope.id = 1"
        )
        db.execute("INSERT INTO name SELECT 'client ' || id, 0, id FROM scope WHERE id >= 1000")
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def half_migrated(path: Path, before: list[str]) -> list[str]:
    """What is wrong with a file whose migration was killed: it is as it was, or whole; and then it can be opened."""
    wrong = []
    if version_of(path) != SCHEMA_VERSION and content(path) != before:
        wrong.append("neither as it was nor migrated")
    try:
        with closing(SqliteLedger(path)) as ledger:
            wrong += differences(ledger)
    except LedgerError as error:
        wrong.append(f"cannot be opened: {error}")
    return wrong


def differences(ledger: Ledger) -> list[str]:
    """What operators would miss in a migrated file."""
    wrong = []
    for name in NAMES:
        standing = ledger.standing(name, group=name == "team:1")
        if not standing.queries and not standing.on_record:
            wrong.append(f"no {name}")
        if name in KNOWN and (standing.alarmed, standing.allowed) != KNOWN[name]:
            wrong.append(f"{name} is {standing}")
    if not ledger.standing("erin").budget:
        wrong.append("the budget of erin")
    if not ledger.records("alice") or not ledger.events():
        wrong.append("records or events")
    return wrong


def layouts(server: redis_server.RedisServer) -> list[Check]:
    """Redis: the first layout is refused until it is migrated, whoever is killed meanwhile; a newer one is refused."""
    checks = []
    for last in range(len(SCOPES) + 1):
        with server.client() as client:
            client.flushall()
            for scope in SCOPES:
                scope.write(client, "queen")
            write_event(client, "queen")
            client.set("queen:check", 1)
        if last < len(SCOPES):
            in_child(lambda last=last: _killed_after(server.url, last))
        message = message_of(LedgerError, lambda: RedisLedger(server.url))
        refused = "queen migrate" in message
        done = migrate(server.url)
        wrong = _lost(server.url)
        name = (
            "refused, then migrated" if last == len(SCOPES) else f"migration killed after {last + 1} of {len(SCOPES)}"
        )
        holds = refused and not wrong and isinstance(done, Migrated) and done.scopes == len(SCOPES)
        checks.append(
            Check(f"redis, layout 1, {name}", holds, f"{done.migrated} migrated then; {wrong or 'nothing lost'}")
        )
    checks.append(Check(f"redis, layout {LAYOUT}: opened again", not _lost(server.url)))
    with server.client() as client:
        client.set("queen:layout", LAYOUT + 1)
    message = message_of(LedgerError, lambda: RedisLedger(server.url))
    checks.append(Check(f"redis, layout {LAYOUT + 1}: refused", "update queen" in message, message))
    return checks


def _killed_after(url: str, last: int) -> None:
    """Migrate client by client, and die after some."""
    redis_client.PAGE = 1
    done = iter(range(last + 1))

    def advance() -> None:
        if next(done) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    migrate(url, advance=advance)


def _lost(url: str) -> list[str]:
    """What operators would miss after a migration."""
    with closing(RedisLedger(url)) as ledger:
        standings = {scope.name: ledger.standing(scope.name, group=scope.group) for scope in SCOPES}
        events = len(ledger.events())
    wrong = [
        f"{scope.name} is {standing}"
        for scope in SCOPES
        if (standing := standings[scope.name])
        and (standing.queries, standing.extra_answers, standing.alarmed, standing.allowed, len(standing.coverage))
        != (scope.queries, scope.extra, scope.alarmed, scope.allowed, len(scope.coverage))
    ]
    return wrong + ([] if events == 1 and standings["given"].budget else ["an event or a budget"])


def in_child(work: Callable[[], None]) -> None:
    """Do it in a process of its own, which must be killed by it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise AssertionError("the migration ended before it was killed")


def message_of(kind: type[Exception], work: Callable[[], Any]) -> str:
    """The message of the error that it raises; "" if it raises none."""
    try:
        work()
    except kind as error:
        return " ".join(str(error).split())
    return ""


def content(path: Path) -> list[str]:
    """All tables of a file, and the number of its schema."""
    with closing(sqlite3.connect(path)) as db:
        return [str(db.execute("PRAGMA user_version").fetchone()[0]), *db.iterdump()]


def version_of(path: Path) -> int:
    """The number of a file's schema."""
    return int(content(path)[0])
