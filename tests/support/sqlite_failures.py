"""Ways in which a SQLite ledger cannot write, and how to mend it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from queen.ledger import SqliteLedger


class FailingConnection:
    """A connection on which one statement fails."""

    def __init__(self, db: sqlite3.Connection, statement: str) -> None:
        self._db, self._statement = db, statement

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        if sql.startswith(self._statement):
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(sql, *values)

    def executemany(self, sql: str, values: object) -> sqlite3.Cursor:
        if sql.startswith(self._statement):
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.executemany(sql, values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def fail_by_read_only(ledger: SqliteLedger) -> None:
    ledger._db.execute("PRAGMA query_only = ON")


def fail_by_full_disk(ledger: SqliteLedger) -> None:
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")


def fail_at(statement: str) -> Callable[[SqliteLedger], None]:
    """Make every statement that begins like this fail."""

    def fail(ledger: SqliteLedger) -> None:
        ledger._db = FailingConnection(ledger._db, statement)

    return fail


FAILURES = {
    "read-only": fail_by_read_only,
    "full disk": fail_by_full_disk,
    "commit": fail_at("COMMIT"),
    "insert": fail_at("INSERT INTO scope"),
}


def mend(ledger: SqliteLedger) -> None:
    """Undo any of them."""
    if isinstance(ledger._db, FailingConnection):
        ledger._db = ledger._db._db
    ledger._db.execute("PRAGMA query_only = OFF")
    ledger._db.execute("PRAGMA max_page_count = 1000000")
