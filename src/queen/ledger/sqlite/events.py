"""What the SQLite ledger's file holds of the whole ledger: facts, and the log of events."""

from __future__ import annotations

import json
import sqlite3

from queen.ledger.words import Event


def read_fact(db: sqlite3.Connection, name: str) -> str | None:
    """Something that is true of the whole ledger; None if nobody has said it."""
    row: tuple[str] | None = db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def write_fact(db: sqlite3.Connection, name: str, value: str, *, replace: bool) -> str:
    """Store a fact, unless there is one that may not be replaced; returns what holds."""
    insert = "INSERT OR REPLACE INTO fact VALUES (?, ?)" if replace else "INSERT OR IGNORE INTO fact VALUES (?, ?)"
    db.execute(insert, (name, value))
    row: tuple[str] = db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
    return row[0]


def write_event(db: sqlite3.Connection, event: Event) -> None:
    """Log an event; the table numbers it."""
    e = event
    db.execute(
        "INSERT INTO event (what, name, is_group, client, wealth, queries, coverage, actor, at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (e.what, e.name, e.group, e.client, e.wealth, e.queries, json.dumps(e.coverage), e.actor, e.at),
    )


def read_events(db: sqlite3.Connection, after: int, newest: int | None) -> list[Event]:
    """The events after this number, oldest first, at most so many of the `newest`."""
    rows: list[tuple[int, str, str, int, str, float, int, str, str, float, str | None]]
    most = -1 if newest is None else newest  # to SQLite -1 is no limit
    rows = db.execute("SELECT * FROM event WHERE id > ? ORDER BY id DESC LIMIT ?", (after, most)).fetchall()
    return [
        Event(i, what, name, bool(group), client, wealth, queries, _coverage(text), actor, at, acknowledged)
        for i, what, name, group, client, wealth, queries, text, actor, at, acknowledged in reversed(rows)
    ]


def read_acknowledgements(db: sqlite3.Connection) -> dict[int, str]:
    """Who has read which event."""
    return dict(db.execute("SELECT id, acknowledged FROM event WHERE acknowledged IS NOT NULL"))


def _coverage(text: str) -> dict[int, float]:
    return {int(label): cqs for label, cqs in json.loads(text).items()}
