"""A durable ledger in one SQLite file: record, commit, answer."""

from __future__ import annotations

import json
import sqlite3
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike, fspath

import numpy as np

from queen.core.sensitivity import Floats
from queen.ledger.base import (
    Budget,
    Event,
    Judgement,
    OneClient,
    Rows,
    Scope,
    Standing,
    by_wealth,
    check_budget,
    check_client,
)
from queen.ledger.scan import ClassState, Journal, ScopeState, scan
from queen.sentinel.sketch import SIZE, Memory
from queen.types import LedgerError, OptionError

SCHEMA_VERSION = 2
APPLICATION_ID = 0x5145454E  # "QEEN", so that another program's database is refused by name
SCHEMA = """
CREATE TABLE scope (
    id INTEGER PRIMARY KEY, is_group INTEGER NOT NULL, name TEXT NOT NULL,
    queries INTEGER NOT NULL DEFAULT 0, bets INTEGER NOT NULL DEFAULT 0, wealth BLOB NOT NULL DEFAULT x'',
    test INTEGER NOT NULL DEFAULT 0,
    extra INTEGER NOT NULL DEFAULT 0, alarmed INTEGER NOT NULL DEFAULT 0, allowed INTEGER NOT NULL DEFAULT 0,
    seen INTEGER NOT NULL DEFAULT 0, budget TEXT,
    UNIQUE (name, is_group)
);
CREATE TABLE record (
    scope INTEGER NOT NULL REFERENCES scope, label INTEGER NOT NULL, seq INTEGER NOT NULL,
    x REAL NOT NULL, y REAL NOT NULL, area REAL NOT NULL,
    PRIMARY KEY (scope, label, seq)
) WITHOUT ROWID;
CREATE TABLE seen (
    scope INTEGER NOT NULL REFERENCES scope, slot INTEGER NOT NULL, digest INTEGER NOT NULL, sketch BLOB NOT NULL,
    PRIMARY KEY (scope, slot)
) WITHOUT ROWID;
CREATE TABLE event (
    id INTEGER PRIMARY KEY, what TEXT NOT NULL, name TEXT NOT NULL, is_group INTEGER NOT NULL, client TEXT NOT NULL,
    wealth REAL NOT NULL, queries INTEGER NOT NULL, coverage TEXT NOT NULL, actor TEXT NOT NULL, at REAL NOT NULL,
    acknowledged TEXT
);
"""
SKETCH = f"<{SIZE}f"
Key = tuple[bool, str]  # is it a group, and its name


class SqliteLedger(OneClient):
    """Write-ahead log, synchronous FULL: an acknowledged record survives a power cut.

    Decisions are made by the same scan as in memory; the file holds the records in order, and CQS is their areas
    summed in that order, so a reopened ledger continues bit for bit. Up to `cache` clients stay in memory. Several
    processes may share a file and stay exact (each call takes the write lock first and forgets its cache when another
    process has written), but only one at a time makes progress: for throughput let one process own the file.
    """

    def __init__(self, path: str | PathLike[str], *, cache: int = 100_000, timeout: float = 5.0) -> None:
        try:
            self.path = fspath(path)
        except TypeError as error:
            raise LedgerError(f"expected the path of a file, got {type(path).__name__}") from error
        self._cache_size = cache
        self._cache: OrderedDict[Key, ScopeState] = OrderedDict()
        self._lock = threading.Lock()
        with self._named_errors():
            self._db = sqlite3.connect(self.path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            with self._named_errors():
                self._open(timeout)
        except BaseException:
            self._db.close()
            raise

    def _open(self, timeout: float) -> None:
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._refuse_others()  # before anything is changed in a file that may not be ours
        self._use_log(timeout)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if self._number("SELECT count(*) FROM sqlite_master") == 0:
                for statement in SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._refuse_others()
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        self._seen_version = self._data_version()

    def _refuse_others(self) -> None:
        """A file with tables must be a ledger of this version; tables first: another process may be making them."""
        if self._number("SELECT count(*) FROM sqlite_master") == 0:
            return
        if self._number("PRAGMA application_id") != APPLICATION_ID:
            raise LedgerError(f"'{self.path}' is a database of another program, not a ledger")
        version = self._number("PRAGMA user_version")
        if version != SCHEMA_VERSION:
            raise LedgerError(f"ledger '{self.path}' has schema {version}, this version reads {SCHEMA_VERSION}")

    def _use_log(self, timeout: float) -> None:
        """Switch to the write-ahead log; SQLite does not wait here when another process opens the file, so we do."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode not in ("wal", "memory"):
            raise LedgerError(f"ledger '{self.path}' cannot use a write-ahead log: is the file system writable?")

    def _number(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge, record and commit; if the commit fails nothing is remembered and `LedgerError` is raised."""
        journal = Journal()
        before: dict[Key, int] = {}  # scopes that were asked for, and how many queries their memory had seen

        def state_of(scope: Scope) -> ScopeState:
            state = self._state(scope.name, group=scope.group)
            before.setdefault((scope.group, scope.name), state.memory.count if state.memory else 0)
            return state

        with self._lock, self._named_errors(), self._transaction():
            judgement = scan(rows, state_of, journal)
            if rows.bets is not None:
                for (group, name), count in before.items():
                    self._write_scope(name, group=group, seen_before=count)
            if journal.records:
                self._write_records(journal, before)
            for standing, client in journal.alarms:
                self._note("alarm", standing, client=client)
        self._trim()
        return judgement

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class this client has records in."""
        return self._peek(client).coverage()

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        return {label: np.array(state.records) for label, state in self._peek(client).classes.items()}

    def clients(self) -> Iterable[str]:
        """Clients on record, sorted."""
        with self._lock, self._named_errors():
            names = self._db.execute(
                "SELECT name FROM scope WHERE NOT is_group AND (queries OR allowed OR budget IS NOT NULL "
                "OR EXISTS (SELECT 1 FROM record WHERE record.scope = scope.id))"
            ).fetchall()
        return sorted(name for (name,) in names)

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client or group stands."""
        return self._peek(name, group=group).standing(name, group=group)

    def standings(self) -> list[Standing]:
        """Where all stand, the highest wealth first."""
        with self._lock, self._named_errors():
            keys = self._db.execute("SELECT name, is_group FROM scope").fetchall()
            return by_wealth(
                self._load(name, group=bool(group), with_memory=False).standing(name, group=bool(group))
                for name, group in keys
            )

    def events(self) -> list[Event]:
        """Alarms and what operators did, oldest first."""
        with self._lock, self._named_errors():
            found = self._db.execute("SELECT * FROM event ORDER BY id").fetchall()
        return [
            Event(number, what, name, bool(group), client, wealth, queries, _coverage(text), actor, at, acknowledged)
            for number, what, name, group, client, wealth, queries, text, actor, at, acknowledged in found
        ]

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has seen an event."""
        check_client(actor)
        with self._lock, self._named_errors(), self._transaction():
            known = self._number("SELECT count(*) FROM event")
            if not 1 <= event <= known:
                raise OptionError(f"no event {event}; there are {known}")
            self._db.execute("UPDATE event SET acknowledged = ? WHERE id = ?", (actor, event))

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm and wealth of a client or group."""
        with self._operation("pardon", name, actor, group=group) as state:
            state.pardon()

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list, or take it off."""
        with self._operation("allow" if allowed else "disallow", client, actor) as state:
            state.allowed = allowed

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client a budget of its own, or the guard's again."""
        with self._operation("budget", client, actor) as state:
            state.budget = check_budget(budget)

    def close(self) -> None:
        """Close the file; SQLite folds the log into it."""
        with self._lock:
            self._cache.clear()
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Take the write lock, drop the cache if another process wrote, and commit or forget everything."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            version = self._data_version()
            if version != self._seen_version:
                self._cache.clear()
                self._seen_version = version
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._cache.clear()  # it may hold records that are not in the file
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _data_version(self) -> int:
        return self._number("PRAGMA data_version")

    @contextmanager
    def _operation(self, what: str, name: str, actor: str, *, group: bool = False) -> Iterator[ScopeState]:
        """Change the state of a client or group and log who did it, with how it stood before, in one transaction."""
        check_client(actor)
        with self._lock, self._named_errors(), self._transaction():
            state = self._state(check_client(name), group=group)
            self._note(what, state.standing(name, group=group), actor=actor)
            yield state
            self._write_scope(name, group=group, seen_before=state.memory.count if state.memory else 0)

    def _state(self, name: str, *, group: bool = False) -> ScopeState:
        state = self._cache.get((group, name))
        if state is None:
            state = self._cache[group, name] = self._load(name, group=group)
        else:
            self._cache.move_to_end((group, name))
        return state

    def _peek(self, name: str, *, group: bool = False) -> ScopeState:
        with self._lock, self._named_errors():
            return self._load(check_client(name), group=group, with_memory=False)

    def _load(self, name: str, *, group: bool, with_memory: bool = True) -> ScopeState:
        state = ScopeState()
        columns = "id, queries, bets, wealth, test, extra, alarmed, allowed, seen, budget"
        query = f"SELECT {columns} FROM scope WHERE name = ? AND is_group = ?"  # noqa: S608  (a constant)
        found = self._db.execute(query, (name, group)).fetchone()
        if found is None:
            return state
        state.id, state.queries, state.bets, wealth, state.test, state.extra, alarmed, allowed, seen, budget = found
        state.wealth = list(struct.unpack(f"<{len(wealth) // 8}d", wealth))
        state.alarmed, state.allowed = bool(alarmed), bool(allowed)
        state.budget = Budget(**json.loads(budget)) if budget else None
        records = "SELECT label, x, y, area FROM record WHERE scope = ? ORDER BY label, seq"
        for label, x, y, area in self._db.execute(records, (state.id,)):
            of_class = state.classes.get(label)
            if of_class is None:
                of_class = state.classes[label] = ClassState()
            of_class.cqs += area
            of_class.records.append((x, y))
        if seen and with_memory:
            state.memory = Memory()
            for digest, sketch in self._db.execute(
                "SELECT digest, sketch FROM seen WHERE scope = ? ORDER BY slot", (state.id,)
            ):
                state.memory.add(digest, struct.unpack(SKETCH, sketch))
            state.memory.count = seen
        return state

    def _id_of(self, name: str, *, group: bool) -> int:
        """The scope's number in the file; given at its first write."""
        state = self._state(name, group=group)
        if state.id is None:
            insert = "INSERT INTO scope (name, is_group) VALUES (?, ?)"
            state.id = self._db.execute(insert, (name, group)).lastrowid
        return int(state.id or 0)

    def _write_scope(self, name: str, *, group: bool, seen_before: int) -> None:
        """Store what the sentinel knows of a scope, and what its memory has learnt since `seen_before`."""
        state, number = self._state(name, group=group), self._id_of(name, group=group)
        memory = state.memory or Memory()
        self._db.execute(
            "UPDATE scope SET queries = ?, bets = ?, wealth = ?, test = ?, extra = ?, alarmed = ?, allowed = ?, "
            "seen = ?, budget = ? WHERE id = ?",
            (
                state.queries,
                state.bets,
                struct.pack(f"<{len(state.wealth)}d", *state.wealth),
                state.test,
                state.extra,
                state.alarmed,
                state.allowed,
                memory.count,
                json.dumps(vars(state.budget)) if state.budget else None,
                number,
            ),
        )
        slots = [i % Memory.CAPACITY for i in range(max(seen_before, memory.count - Memory.CAPACITY), memory.count)]
        known = [(slot, *memory.slot(slot)) for slot in slots]
        rows = [(number, slot, digest, struct.pack(SKETCH, *sketch)) for slot, digest, sketch in known]
        self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", rows)

    def _write_records(self, journal: Journal, scopes: Iterable[Key]) -> None:
        """Insert the new records; their states hold them already, so numbering goes backwards from the newest."""
        names = {id(self._state(name, group=group)): (group, name) for group, name in scopes}
        values = []
        older: dict[tuple[int, int], int] = {}
        for state, label, x, y, area in reversed(journal.records):
            group, name = names[id(state)]
            key = id(state), label
            older[key] = older.get(key, len(state.classes[label].records)) - 1
            values.append((self._id_of(name, group=group), label, older[key], x, y, area))
        self._db.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", values)

    def _note(self, what: str, of: Standing, *, client: str = "", actor: str = "") -> None:
        self._db.execute(
            "INSERT INTO event (what, name, is_group, client, wealth, queries, coverage, actor, at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (what, of.name, of.group, client, of.wealth, of.queries, json.dumps(of.coverage), actor, time.time()),
        )

    def _trim(self) -> None:
        with self._lock:
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(
                f"ledger '{self.path}' failed: {error}. Nothing was recorded; is the file locked, read-only or full?"
            ) from error


def _coverage(text: str) -> dict[int, float]:
    return {int(label): cqs for label, cqs in json.loads(text).items()}
