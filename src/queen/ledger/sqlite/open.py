"""How the SQLite ledger's file is made, recognised, refused, and brought from an older version to this one."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from queen.errors import LedgerError, ProtectionWarning
from queen.ledger.sqlite.schema import FACT, SCHEMA, SCOPE, SENTINEL, number
from queen.ledger.sqlite.usages import USAGE

SCHEMA_VERSION = 7
# What each version that we read has and no older one has; the newest comes first.
COLUMNS_OF = {
    7: {"winnings.id", "scope.after_alarm", "fact.value", "usage.amount"},
    6: {"winnings.id", "scope.after_alarm", "fact.value"},
    5: {"winnings.id", "scope.after_alarm"},
    4: {"winnings.id"},
    3: {"seen.id"},
}
APPLICATION_ID = 0x5145454E  # "QEEN", so that another program's database is refused by name
QUESTIONS = {  # that may help, by SQLite's code
    sqlite3.SQLITE_ERROR: "has another version of queen changed it",
    sqlite3.SQLITE_CANTOPEN: "is it a file, in a folder that is there and may be written",
}
PATIENCE = 600.0  # seconds that another process may take to migrate the file
# Version 3 had one ring of 1,024 rows a scope, `seen`: pictures, and the digest of each that was answered (else 0). Its
# pictures stay in their slots; digests are numbered anew, from the oldest. Wealth was that of another kind of test.
FROM_3 = """
INSERT INTO picture SELECT id, sketch FROM seen ORDER BY id;
INSERT INTO answered
    SELECT scope * 1024 + row_number() OVER (PARTITION BY scope ORDER BY age) - 1, digest FROM (
        SELECT scope.id AS scope, digest, ((seen.id - scope.seen) % 1024 + 1024) % 1024 AS age
        FROM seen JOIN scope ON scope.id = seen.id / 1024 WHERE digest != 0
    ) ORDER BY scope, age;
INSERT INTO new_scope
    SELECT scope.id, queries, extra, alarmed, allowed, seen, count(answered.id), 0, 0, budget, NULL, 0
    FROM scope LEFT JOIN answered ON answered.id >= scope.id * 1024 AND answered.id < (scope.id + 1) * 1024
    GROUP BY scope.id ORDER BY scope.id;
DROP TABLE seen;
DROP TABLE scope;
ALTER TABLE new_scope RENAME TO scope
"""
FROM_4 = "ALTER TABLE scope ADD COLUMN after_alarm INTEGER NOT NULL DEFAULT 0"  # version 4 did not count them
MIGRATIONS = {  # each to the newest version; version 5 had no facts, version 6 no budgets that renew
    3: SCOPE.replace("TABLE scope", "TABLE new_scope") + SENTINEL + FACT + USAGE + FROM_3,
    4: FACT + USAGE + FROM_4,
    5: FACT + USAGE,
    6: USAGE,
}


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Turn errors of SQLite into `LedgerError`, with the file's name and a question that may help."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        ask = QUESTIONS.get(code, "is the file locked, read-only or full")
        raise LedgerError(f"ledger '{path}' failed: {error}. Nothing was recorded; {ask}?") from error


def make_private(path: str) -> None:
    """Make a file that its owner alone may read, or make one private that is not; SQLite's log and index follow it.

    Older versions left that to the umask, so a wider mode is hardly ever meant: what clients have asked is nobody
    else's business. Where the file is somebody else's, they are told.
    """
    if path in ("", ":memory:"):
        return
    with suppress(OSError):  # SQLite will say what is wrong with the path
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for file in (path, f"{path}-wal", f"{path}-shm"):
        try:
            if os.stat(file).st_mode & 0o077:
                os.chmod(file, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            warnings.warn(
                f"others may read '{file}', and that cannot be changed ({error.strerror}): chmod 600 it",
                ProtectionWarning,
                stacklevel=4,
            )


def file_at(path: str) -> tuple[int, int] | None:
    """The identity of the file at a path, or None."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def stored_facts(path: str) -> dict[str, str]:
    """The facts in a file as it is without its log; none where it is no ledger, or is just being written."""
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            return dict(db.execute("SELECT name, value FROM fact"))
    except sqlite3.Error:
        return {}


def prepare(db: sqlite3.Connection, path: str, timeout: float) -> None:
    """Make the tables of a new file, or migrate one of an older version; refuse any other, and leave it alone."""
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = OFF")  # a migration replaces a table that others refer to
    _refuse_others(db, path)  # before anything is changed in a file that may not be ours
    _use_log(db, path, timeout)
    if _version(db) in MIGRATIONS:  # another process may be at it, which can take long
        db.execute(f"PRAGMA busy_timeout = {int(1000 * max(timeout, PATIENCE))}")
    db.execute("BEGIN IMMEDIATE")
    try:
        if number(db, "SELECT count(*) FROM sqlite_master") == 0:
            _run(db, f"{SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}")
        else:
            version = _refuse_others(db, path)
            if version in MIGRATIONS:
                _run(db, MIGRATIONS[version])
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

    Tables decide, not the number: a server of an older version that still runs on a migrated file writes its own number
    back whenever it is asked whether it can write.
    """
    version = number(db, "PRAGMA user_version")
    if version not in COLUMNS_OF:
        return version
    listed = "SELECT t.name || '.' || c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    columns = {name for (name,) in db.execute(listed)}
    return next((one for one, needed in COLUMNS_OF.items() if needed <= columns), None)


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
    if version in COLUMNS_OF:
        return version
    way_out = "update queen" if version > SCHEMA_VERSION else "open it once with the version of queen that reads both"
    raise LedgerError(
        f"ledger '{path}' has schema {version}, this version reads {SCHEMA_VERSION} and migrates "
        f"{', '.join(map(str, MIGRATIONS))}: "
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
