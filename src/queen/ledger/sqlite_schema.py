"""The tables of the SQLite ledger's file: how it is opened, and how states become rows and rows states."""

from __future__ import annotations

import json
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

from queen.errors import LedgerError
from queen.ledger.base import Budget, Event, Standing
from queen.ledger.decide import Journal
from queen.ledger.state import ClassState, ScopeState
from queen.sentinel.sketch import SIZE, Memory

SCHEMA_VERSION = 3
APPLICATION_ID = 0x5145454E  # "QEEN", so that another program's database is refused by name
SCHEMA = """
CREATE TABLE scope (
    id INTEGER PRIMARY KEY, queries INTEGER NOT NULL, bets INTEGER NOT NULL, wealth BLOB NOT NULL,
    test INTEGER NOT NULL, extra INTEGER NOT NULL, alarmed INTEGER NOT NULL, allowed INTEGER NOT NULL,
    seen INTEGER NOT NULL, budget TEXT
);
CREATE TABLE name (
    name TEXT NOT NULL, is_group INTEGER NOT NULL, scope INTEGER NOT NULL REFERENCES scope,
    PRIMARY KEY (name, is_group)
) WITHOUT ROWID;
CREATE TABLE record (
    scope INTEGER NOT NULL REFERENCES scope, label INTEGER NOT NULL, seq INTEGER NOT NULL,
    x REAL NOT NULL, y REAL NOT NULL, area REAL NOT NULL,
    PRIMARY KEY (scope, label, seq)
) WITHOUT ROWID;
CREATE TABLE seen (id INTEGER PRIMARY KEY, digest INTEGER NOT NULL, sketch BLOB NOT NULL);
CREATE TABLE event (
    id INTEGER PRIMARY KEY, what TEXT NOT NULL, name TEXT NOT NULL, is_group INTEGER NOT NULL, client TEXT NOT NULL,
    wealth REAL NOT NULL, queries INTEGER NOT NULL, coverage TEXT NOT NULL, actor TEXT NOT NULL, at REAL NOT NULL,
    acknowledged TEXT
);
"""
SLOTS = 1 << 10  # rows of `seen` are numbered scope * SLOTS + slot: one number takes less room than two
SKETCH = struct.Struct(f"<{SIZE}f")
Key = tuple[bool, str]  # is it a group, and its name
Touched = dict[Key, tuple[ScopeState, int]]  # states that may have changed, and `remembered` from before


def prepare(db: sqlite3.Connection, path: str, timeout: float) -> None:
    """Make the tables of a new file; refuse a file that is not a ledger of this version, and leave it alone."""
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    _refuse_others(db, path)  # before anything is changed in a file that may not be ours
    _use_log(db, path, timeout)
    db.execute("BEGIN IMMEDIATE")
    try:
        if number(db, "SELECT count(*) FROM sqlite_master") == 0:
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        _refuse_others(db, path)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _refuse_others(db: sqlite3.Connection, path: str) -> None:
    """A file with tables must be a ledger of this version; one without may be new, or another process is making it."""
    if number(db, "SELECT count(*) FROM sqlite_master") == 0:
        return
    if number(db, "PRAGMA application_id") != APPLICATION_ID:
        raise LedgerError(f"'{path}' is a database of another program, not a ledger")
    version = number(db, "PRAGMA user_version")
    if version != SCHEMA_VERSION:
        raise LedgerError(f"ledger '{path}' has schema {version}, this version reads {SCHEMA_VERSION}")


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


def number(db: sqlite3.Connection, query: str) -> int:
    """The one number that a query returns."""
    return int(db.execute(query).fetchone()[0])


def load(db: sqlite3.Connection, name: str, *, group: bool, with_memory: bool = True) -> ScopeState:
    """The state of a client or group; a new one if there is none in the file."""
    state = ScopeState()
    row = db.execute(
        "SELECT id, queries, bets, wealth, test, extra, alarmed, allowed, seen, budget "
        "FROM name JOIN scope ON scope.id = name.scope WHERE name = ? AND is_group = ?",
        (name, group),
    ).fetchone()
    if row is not None:
        try:
            _fill(db, state, row, with_memory=with_memory)
        except (struct.error, ValueError, TypeError) as error:
            raise LedgerError(
                f"the entry of '{name}' is damaged ({error}): restore the ledger from a backup"
            ) from error
    return state


def each_standing(db: sqlite3.Connection) -> Iterator[Standing]:
    """Where everybody on record stands."""
    for name, group in db.execute("SELECT name, is_group FROM name"):
        state = load(db, name, group=bool(group), with_memory=False)
        standing = state.standing(name, group=bool(group))
        if standing.on_record:
            yield standing


def _fill(db: sqlite3.Connection, state: ScopeState, row: tuple[Any, ...], *, with_memory: bool) -> None:
    """Fill a new state from its row in `scope` and its rows in `record` and `seen`."""
    state.id, state.queries, state.bets, wealth, state.test, state.extra, alarmed, allowed, remembered, budget = row
    state.wealth = list(struct.unpack(f"<{len(wealth) // 8}d", wealth))
    state.alarmed, state.allowed = bool(alarmed), bool(allowed)
    state.budget = Budget(**json.loads(budget)) if budget else None
    records = "SELECT label, x, y, area FROM record WHERE scope = ? ORDER BY label, seq"
    for label, x, y, area in db.execute(records, (state.id,)):
        of_class = state.classes.get(label)
        if of_class is None:
            of_class = state.classes[label] = ClassState()
        of_class.cqs += area
        of_class.records.append((x, y))
    if remembered and with_memory:
        state.memory = Memory()
        slots = "SELECT digest, sketch FROM seen WHERE id >= ? AND id < ? ORDER BY id"
        for digest, sketch in db.execute(slots, (row[0] * SLOTS, (row[0] + 1) * SLOTS)):
            state.memory.add(digest, SKETCH.unpack(sketch))
        state.memory.count = remembered


def write(db: sqlite3.Connection, touched: Touched, *, only_queries: bool = False) -> None:
    """Store states: one statement per kind of change, so that a batch costs about the same whatever was decided."""
    fresh = {key: state for key, (state, _) in touched.items() if state.id is None}
    if fresh:
        first = number(db, "SELECT coalesce(max(id), 0) + 1 FROM scope")
        for i, state in enumerate(fresh.values(), first):
            state.id = i
        db.executemany("INSERT INTO scope VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [
            (state.id, *_columns(state)) for state in fresh.values()
        ])  # fmt: skip
        db.executemany("INSERT INTO name VALUES (?, ?, ?)", [(name, group, s.id) for (group, name), s in fresh.items()])
    stored = [state for key, (state, _) in touched.items() if key not in fresh]
    if only_queries:
        db.executemany("UPDATE scope SET queries = ? WHERE id = ?", [(state.queries, state.id) for state in stored])
        return
    db.executemany(
        "UPDATE scope SET queries = ?, bets = ?, wealth = ?, test = ?, extra = ?, alarmed = ?, allowed = ?, "
        "seen = ?, budget = ? WHERE id = ?",
        [(*_columns(state), state.id) for state in stored],
    )
    db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", _new_slots(touched))


def _columns(state: ScopeState) -> tuple[object, ...]:
    return (
        state.queries,
        state.bets,
        struct.pack(f"<{len(state.wealth)}d", *state.wealth),
        state.test,
        state.extra,
        state.alarmed,
        state.allowed,
        state.remembered,
        json.dumps(vars(state.budget)) if state.budget else None,
    )


def _new_slots(touched: Touched) -> list[tuple[object, ...]]:
    """Rows of `seen` for the slots that the memories have filled since."""
    rows: list[tuple[object, ...]] = []
    for state, before in touched.values():
        if (memory := state.memory) is None or state.id is None:
            continue
        for i in range(max(before, memory.count - memory.CAPACITY), memory.count):
            digest, sketch = memory.slot(i % memory.CAPACITY)
            rows.append((state.id * SLOTS + i % memory.CAPACITY, digest, SKETCH.pack(*sketch)))
    return rows


def write_records(db: sqlite3.Connection, journal: Journal) -> None:
    """Insert the new records; their states contain them already, so they are numbered backwards from the newest."""
    values = []
    older: dict[tuple[int | None, int], int] = {}
    for state, label, x, y, area in reversed(journal.records):
        key = state.id, label
        older[key] = older.get(key, len(state.classes[label].records)) - 1
        values.append((state.id, label, older[key], x, y, area))
    db.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", values)


def write_event(db: sqlite3.Connection, event: Event) -> None:
    """Log an event; the table numbers it."""
    e = event
    db.execute(
        "INSERT INTO event (what, name, is_group, client, wealth, queries, coverage, actor, at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (e.what, e.name, e.group, e.client, e.wealth, e.queries, json.dumps(e.coverage), e.actor, e.at),
    )


def read_events(db: sqlite3.Connection) -> list[Event]:
    """All events, oldest first."""
    rows: Iterable[tuple[int, str, str, int, str, float, int, str, str, float, str | None]]
    rows = db.execute("SELECT * FROM event ORDER BY id").fetchall()
    return [
        Event(i, what, name, bool(group), client, wealth, queries, _coverage(text), actor, at, acknowledged)
        for i, what, name, group, client, wealth, queries, text, actor, at, acknowledged in rows
    ]


def _coverage(text: str) -> dict[int, float]:
    return {int(label): cqs for label, cqs in json.loads(text).items()}
