"""How the SQLite ledger's file is made, recognised, refused, and brought from the last version to this one."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from queen.errors import LedgerError
from queen.ledger.sqlite_schema import SCHEMA, SCOPE, SENTINEL, number

SCHEMA_VERSION = 4
LAST_VERSION = 3  # a file of it is migrated when it is opened
TABLE_OF = {SCHEMA_VERSION: "winnings", LAST_VERSION: "seen"}  # which no other version has
APPLICATION_ID = 0x5145454E  # "QEEN", so that another program's database is refused by name
PATIENCE = 600.0  # seconds that another process may take to migrate the file
# Version 3 had one ring of 1,024 rows a scope, `seen`: pictures, and the digest of each that was answered (else 0). Its
# pictures stay in their slots; digests are numbered anew, from the oldest. Wealth was that of another kind of test.
FROM_LAST = """
INSERT INTO picture SELECT id, sketch FROM seen ORDER BY id;
INSERT INTO answered
    SELECT scope * 1024 + row_number() OVER (PARTITION BY scope ORDER BY age) - 1, digest FROM (
        SELECT scope.id AS scope, digest, ((seen.id - scope.seen) % 1024 + 1024) % 1024 AS age
        FROM seen JOIN scope ON scope.id = seen.id / 1024 WHERE digest != 0
    ) ORDER BY scope, age;
INSERT INTO new_scope
    SELECT scope.id, queries, extra, alarmed, allowed, seen, count(answered.id), 0, 0, budget, NULL
    FROM scope LEFT JOIN answered ON answered.id >= scope.id * 1024 AND answered.id < (scope.id + 1) * 1024
    GROUP BY scope.id ORDER BY scope.id;
DROP TABLE seen;
DROP TABLE scope;
ALTER TABLE new_scope RENAME TO scope
"""


def prepare(db: sqlite3.Connection, path: str, timeout: float) -> None:
    """Make the tables of a new file, or migrate one of the last version; refuse any other, and leave it alone."""
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = OFF")  # a migration replaces a table that others refer to
    _refuse_others(db, path)  # before anything is changed in a file that may not be ours
    _use_log(db, path, timeout)
    if _version(db) == LAST_VERSION:  # another process may be at it, which can take long
        db.execute(f"PRAGMA busy_timeout = {int(1000 * max(timeout, PATIENCE))}")
    db.execute("BEGIN IMMEDIATE")
    try:
        if number(db, "SELECT count(*) FROM sqlite_master") == 0:
            _run(db, f"{SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}")
        else:
            if _refuse_others(db, path) == LAST_VERSION:
                _run(db, SCOPE.replace("TABLE scope", "TABLE new_scope") + SENTINEL + FROM_LAST)
            if number(db, "PRAGMA user_version") != SCHEMA_VERSION:
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    db.execute(f"PRAGMA busy_timeout = {int(1000 * timeout)}")
    db.execute("PRAGMA foreign_keys = ON")


def stored_version(path: Path) -> int | None:
    """The version of the schema in a file; None where it is no ledger, which opening it will explain."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return _version(db)
    except sqlite3.Error:
        return None


def _version(db: sqlite3.Connection) -> int | None:
    """The version of the schema; None if the file says that it is one of those we read, but has the tables of none.

    Tables decide, not the number: a server of the last version that still runs on a migrated file writes its own number
    back whenever it is asked whether it can write.
    """
    version = number(db, "PRAGMA user_version")
    if version not in TABLE_OF:
        return version
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return next((one for one, table in TABLE_OF.items() if table in tables), None)


def _run(db: sqlite3.Connection, statements: str) -> None:
    """One after the other inside the transaction; `executescript` would commit it first."""
    for statement in statements.split(";"):
        db.execute(statement)


def _refuse_others(db: sqlite3.Connection, path: str) -> int:
    """The version of a file with tables, which must be a ledger's; one without may be new, or is just being made."""
    if number(db, "SELECT count(*) FROM sqlite_master") == 0:
        return SCHEMA_VERSION
    if number(db, "PRAGMA application_id") != APPLICATION_ID:
        raise LedgerError(f"'{path}' is a database of another program, not a ledger")
    version = _version(db)
    if version is None:
        raise LedgerError(f"ledger '{path}' is damaged, it lacks tables: restore it from a backup, or begin a new file")
    if version in TABLE_OF:
        return version
    way_out = "update queen" if version > SCHEMA_VERSION else "open it once with the version of queen that reads both"
    raise LedgerError(
        f"ledger '{path}' has schema {version}, this version reads {SCHEMA_VERSION} and migrates {LAST_VERSION}: "
        f"{way_out}, or begin a new file"
    )


def _use_log(db: sqlite3.Connection, path: str, timeout: float) -> None:
    """Switch to the write-ahead log; SQLite does not wait here when another process opens the file, so we do."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode not in ("wal", "memory"):
        raise LedgerError(f"ledger '{path}' cannot use a write-ahead log: is the file system writable?")
