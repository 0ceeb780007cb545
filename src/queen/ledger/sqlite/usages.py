"""The table of what was used of budgets that renew."""

from __future__ import annotations

import sqlite3

from queen.ledger.charge import Journal
from queen.ledger.state import ScopeState
from queen.ledger.usage import Usage

USAGE = """
CREATE TABLE usage (
    scope INTEGER NOT NULL REFERENCES scope, label INTEGER NOT NULL, amount REAL NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (scope, label)
) WITHOUT ROWID;
"""
EXTRA = -1  # in the place of a label: what was used of the extra answers


def fill_usages(db: sqlite3.Connection, state: ScopeState, scope: int) -> None:
    """Put into a state, which has its records, what was used of its budgets that renew."""
    for label, amount, at in db.execute("SELECT label, amount, at FROM usage WHERE scope = ?", (scope,)):
        if label == EXTRA:
            state.extra_usage = Usage(amount, at)
        else:
            state.classes[label].usage = Usage(amount, at)


def write_usages(db: sqlite3.Connection, journal: Journal) -> None:
    """Store what was used of budgets that renew."""
    values = []
    for state, label in dict.fromkeys(journal.usages):
        usage = state.extra_usage if label is None else state.classes[label].usage
        values.append((state.id, EXTRA if label is None else label, usage.amount, usage.at))
    db.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?)", values)


def end_usages(db: sqlite3.Connection, now: int) -> None:
    """Let no use of a renewing budget lie after now."""
    db.execute("UPDATE usage SET at = ? WHERE at > ?", (now, now))


def drop_coverage(db: sqlite3.Connection) -> None:
    """Forget all records, and with them what was used of the budgets of classes."""
    db.execute("DELETE FROM record")
    db.execute("DELETE FROM usage WHERE label != ?", (EXTRA,))
