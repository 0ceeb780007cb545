"""A SQLite ledger as the last version wrote it: `tests/ledger/schema_3.sql` is the dump of one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from queen.ledger.sqlite_open import APPLICATION_ID
from tests.support.paths import ROOT

DUMP = (ROOT / "tests" / "ledger" / "schema_3.sql").read_text()


def old_file(path: Path, dump: str = DUMP) -> Path:
    """A file of schema 3 at this path."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(dump)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 3")
    return path
