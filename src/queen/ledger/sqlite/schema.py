"""The tables of the SQLite ledger's file, and how states become rows and rows states."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from queen.errors import LedgerError
from queen.ledger.charge import Journal
from queen.ledger.sqlite.codec import BLOCK, pack_block, pack_purses, unpack_block, unpack_purses
from queen.ledger.sqlite.usages import USAGE, fill_usages, write_usages
from queen.ledger.state import TESTS, ClassState, ScopeState
from queen.ledger.words import Budget, Standing
from queen.sentinel.bets import Test
from queen.sentinel.sketch import SIZE

SCOPE = """
CREATE TABLE scope (
    id INTEGER PRIMARY KEY, queries INTEGER NOT NULL, extra INTEGER NOT NULL, alarmed INTEGER NOT NULL,
    allowed INTEGER NOT NULL, pictures INTEGER NOT NULL, answered INTEGER NOT NULL, newest INTEGER NOT NULL,
    outlasted INTEGER NOT NULL, budget TEXT, homes TEXT, after_alarm INTEGER NOT NULL DEFAULT 0
);
"""
SENTINEL = """
CREATE TABLE test (
    account TEXT NOT NULL, id INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (account, id)
) WITHOUT ROWID;
CREATE TABLE winnings (id INTEGER PRIMARY KEY, test INTEGER NOT NULL, clocks BLOB NOT NULL, purses BLOB NOT NULL);
CREATE TABLE counts (id INTEGER PRIMARY KEY, numbers BLOB NOT NULL);
CREATE TABLE picture (id INTEGER PRIMARY KEY, sketch BLOB NOT NULL);
CREATE TABLE answered (id INTEGER PRIMARY KEY, digest INTEGER NOT NULL);
"""
FACT = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
SCHEMA = f"""
{SCOPE}
CREATE TABLE name (
    name TEXT NOT NULL, is_group INTEGER NOT NULL, scope INTEGER NOT NULL REFERENCES scope,
    PRIMARY KEY (name, is_group)
) WITHOUT ROWID;
CREATE TABLE record (
    scope INTEGER NOT NULL REFERENCES scope, label INTEGER NOT NULL, seq INTEGER NOT NULL,
    x REAL NOT NULL, y REAL NOT NULL, area REAL NOT NULL,
    PRIMARY KEY (scope, label, seq)
) WITHOUT ROWID;
{SENTINEL}
CREATE TABLE event (
    id INTEGER PRIMARY KEY, what TEXT NOT NULL, name TEXT NOT NULL, is_group INTEGER NOT NULL, client TEXT NOT NULL,
    wealth REAL NOT NULL, queries INTEGER NOT NULL, coverage TEXT NOT NULL, actor TEXT NOT NULL, at REAL NOT NULL,
    acknowledged TEXT
);
{FACT}
{USAGE}
"""
# One number takes less room than two: rows of `picture` and `answered` are numbered scope * SLOTS + slot, those of
# `winnings` scope * TESTS + place, and those of `counts` (number of the winnings) * BLOCKS + block of classes.
SLOTS = 1 << 10
BLOCKS = 1 << 28
SKETCH = struct.Struct(f"<{SIZE}f")
Key = tuple[bool, str]  # is it a group, and its name
Touched = dict[Key, tuple[ScopeState, int, int]]  # states that may have changed; pictures and answers from before


def number(db: sqlite3.Connection, query: str) -> int:
    """The one number that a query returns."""
    return int(db.execute(query).fetchone()[0])


def load(db: sqlite3.Connection, name: str, *, group: bool, to_judge: bool = True) -> ScopeState:
    """The state of a client or group; a new one if there is none in the file.

    Unless it is `to_judge`, the memory and the counts of classes are left out.
    """
    state = ScopeState()
    row = db.execute(
        "SELECT id, queries, extra, alarmed, allowed, pictures, answered, newest, outlasted, budget, homes, "
        "after_alarm FROM name JOIN scope ON scope.id = name.scope WHERE name = ? AND is_group = ?",
        (name, group),
    ).fetchone()
    if row is not None:
        try:
            _fill(db, state, row, to_judge=to_judge)
        except (struct.error, ValueError, TypeError, LookupError, AttributeError) as error:
            raise LedgerError(
                f"the entry of '{name}' is damaged ({error}): restore the ledger from a backup"
            ) from error
    return state


def each_standing(db: sqlite3.Connection) -> Iterator[Standing]:
    """Where everybody on record stands."""
    for name, group in db.execute("SELECT name, is_group FROM name"):
        state = load(db, name, group=bool(group), to_judge=False)
        standing = state.standing(name, group=bool(group))
        if standing.on_record:
            yield standing


def _fill(db: sqlite3.Connection, state: ScopeState, row: tuple[Any, ...], *, to_judge: bool) -> None:
    """Fill a new state from its row in `scope` and its rows in the other tables."""
    scope, state.queries, state.extra, alarmed, allowed, pictures, answered, newest, state.outlasted, *rest = row
    budget, homes, state.after_alarm = rest
    state.id, state.alarmed, state.allowed = scope, bool(alarmed), bool(allowed)
    state.budget = Budget(**json.loads(budget)) if budget else None
    state.homes = {kind: list(names) for kind, names in json.loads(homes).items()} if homes else {}
    records = "SELECT label, x, y, area FROM record WHERE scope = ? ORDER BY label, seq"
    for label, x, y, area in db.execute(records, (scope,)):
        of_class = state.classes.get(label)
        if of_class is None:
            of_class = state.classes[label] = ClassState()
        of_class.cqs += area
        of_class.records.append((x, y))
    fill_usages(db, state, scope)
    _fill_winnings(db, state, newest, with_counts=to_judge)
    if not to_judge:
        return
    memory, slots = state.memory, (scope * SLOTS, (scope + 1) * SLOTS)
    if pictures:
        for (sketch,) in db.execute("SELECT sketch FROM picture WHERE id >= ? AND id < ? ORDER BY id", slots):
            memory.add_picture(SKETCH.unpack(sketch))
    if answered:
        for (digest,) in db.execute("SELECT digest FROM answered WHERE id >= ? AND id < ? ORDER BY id", slots):
            memory.add_answered(digest)
    memory.pictures, memory.answered = pictures, answered


def _fill_winnings(db: sqlite3.Connection, state: ScopeState, newest: int, *, with_counts: bool) -> None:
    """Put the winnings into a state, those of the newest test last."""
    first = _places(state).start
    rows = "SELECT id, test, clocks, purses FROM winnings WHERE id >= ? AND id < ? ORDER BY id = ?, id"
    for place, test, clocks, purses in db.execute(rows, (first, first + TESTS, first + newest)):
        state.winnings[test] = unpack_purses(clocks, purses)
        state.slots[place - first] = test
    if with_counts and state.winnings:
        blocks = "SELECT id, numbers FROM counts WHERE id >= ? AND id < ?"
        for block, numbers in db.execute(blocks, (first * BLOCKS, (first + TESTS) * BLOCKS)):
            test = state.slots[block // BLOCKS - first]
            if test is None:
                raise ValueError("there are counts of no test")
            unpack_block(state.winnings[test], block % BLOCKS, numbers)


def _places(state: ScopeState) -> range:
    """The numbers of the winnings of a state that has a number."""
    if state.id is None:
        raise AssertionError("a state is numbered before anything else of it is written")
    return range(state.id * TESTS, (state.id + 1) * TESTS)


def write(db: sqlite3.Connection, touched: Touched, journal: Journal, test: Test | None) -> None:
    """Store what was decided: one statement per kind of change, so that a batch costs about the same whatever it was.

    `test` is the one that bets were placed in; without it nothing has changed but queries and records.
    """
    fresh = {key: state for key, (state, _, _) in touched.items() if state.id is None}
    if fresh:
        for i, state in enumerate(fresh.values(), number(db, "SELECT coalesce(max(id), 0) + 1 FROM scope")):
            state.id = i
    if test is not None:
        _write_winnings(db, journal, test)
    if fresh:
        db.executemany("INSERT INTO scope VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [
            (state.id, *_columns(state)) for state in fresh.values()
        ])  # fmt: skip
        db.executemany("INSERT INTO name VALUES (?, ?, ?)", [(name, group, s.id) for (group, name), s in fresh.items()])
    stored = [state for key, (state, _, _) in touched.items() if key not in fresh]
    if test is None:
        db.executemany("UPDATE scope SET queries = ? WHERE id = ?", [(state.queries, state.id) for state in stored])
    else:
        write_scopes(db, stored)
        _write_memories(db, touched)
    if journal.records:
        _write_records(db, journal)
    if journal.usages:
        write_usages(db, journal)


def write_scopes(db: sqlite3.Connection, stored: Iterable[ScopeState]) -> None:
    """Store what is one number for each state; these states have a row already."""
    db.executemany(
        "UPDATE scope SET queries = ?, extra = ?, alarmed = ?, allowed = ?, pictures = ?, answered = ?, newest = ?, "
        "outlasted = ?, budget = ?, homes = ?, after_alarm = ? WHERE id = ?",
        [(*_columns(state), state.id) for state in stored],
    )


def _columns(state: ScopeState) -> tuple[object, ...]:
    return (
        state.queries,
        state.extra,
        state.alarmed,
        state.allowed,
        state.memory.pictures,
        state.memory.answered,
        state.slots.index(next(reversed(state.winnings))) if state.winnings else 0,
        state.outlasted,
        json.dumps(vars(state.budget)) if state.budget else None,
        json.dumps(state.homes) if state.homes else None,
        state.after_alarm,
    )


def _write_winnings(db: sqlite3.Connection, journal: Journal, test: Test) -> None:
    """Store the purses of who placed bets, and the counts of the classes they were placed in."""
    purses, blocks, dropped = [], [], []
    for state, labels in journal.bets:
        winnings, places = state.winnings[test.id], _places(state)
        if test.id not in state.slots:
            slot = next(i for i, one in enumerate(state.slots) if one not in state.winnings)
            if state.slots[slot] is not None:
                dropped.append((places[slot] * BLOCKS, (places[slot] + 1) * BLOCKS))
            state.slots[slot] = test.id
        place = places[state.slots.index(test.id)]
        purses.append((place, test.id, *pack_purses(winnings)))
        for block in {label // BLOCK for label in labels if label in winnings.counts}:
            blocks.append((place * BLOCKS + block, pack_block(winnings, block)))
    if dropped:
        db.executemany("DELETE FROM counts WHERE id >= ? AND id < ?", dropped)
    db.executemany("INSERT OR REPLACE INTO winnings VALUES (?, ?, ?, ?)", purses)
    db.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", blocks)


def drop_winnings(db: sqlite3.Connection, state: ScopeState) -> None:
    """Forget the winnings of a state in every test."""
    places = _places(state)
    db.execute("DELETE FROM winnings WHERE id >= ? AND id < ?", (places.start, places.stop))
    db.execute("DELETE FROM counts WHERE id >= ? AND id < ?", (places.start * BLOCKS, places.stop * BLOCKS))
    state.slots = [None] * TESTS


def _write_memories(db: sqlite3.Connection, touched: Touched) -> None:
    """Store the pictures and digests that the memories have gained."""
    pictures: list[tuple[int, bytes]] = []
    digests: list[tuple[int, int]] = []
    for state, pictures_before, answered_before in touched.values():
        memory, first = state.memory, (state.id or 0) * SLOTS
        size = memory.CAPACITY
        for i in range(max(pictures_before, memory.pictures - size), memory.pictures):
            pictures.append((first + i % size, SKETCH.pack(*memory.picture(i % size))))
        for i in range(max(answered_before, memory.answered - size), memory.answered):
            digests.append((first + i % size, memory.digests[i % size]))
    db.executemany("INSERT OR REPLACE INTO picture VALUES (?, ?)", pictures)
    db.executemany("INSERT OR REPLACE INTO answered VALUES (?, ?)", digests)


def _write_records(db: sqlite3.Connection, journal: Journal) -> None:
    """Insert the new records; their states contain them already, so they are numbered backwards from the newest."""
    values = []
    older: dict[tuple[int | None, int], int] = {}
    for state, label, x, y, area in reversed(journal.records):
        key = state.id, label
        older[key] = older.get(key, len(state.classes[label].records)) - 1
        values.append((state.id, label, older[key], x, y, area))
    db.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", values)


def number_test(db: sqlite3.Connection, test: Test, *, claim: bool = True) -> int:
    """The number of a test in its account; a new one gets the next if it is to `claim` it."""
    key = test.account, test.id
    row = db.execute("SELECT number FROM test WHERE account = ? AND id = ?", key).fetchone()
    if row is None:
        row = db.execute("SELECT count(*) + 1 FROM test WHERE account = ?", (test.account,)).fetchone()
        if claim:
            db.execute("INSERT INTO test VALUES (?, ?, ?)", (*key, row[0]))
    return int(row[0])
