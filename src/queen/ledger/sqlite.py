"""A durable ledger in one SQLite file: record, commit, answer."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike, fspath

import numpy as np

from queen.core.sensitivity import Floats
from queen.ledger.base import Judgement, OneClient, Rows, check_client
from queen.ledger.scan import ClassState, scan
from queen.types import LedgerError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x5145454E  # "QEEN", so that another program's database is refused by name
SCHEMA = """
CREATE TABLE client (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE record (
    client INTEGER NOT NULL REFERENCES client, label INTEGER NOT NULL, seq INTEGER NOT NULL,
    x REAL NOT NULL, y REAL NOT NULL, area REAL NOT NULL,
    PRIMARY KEY (client, label, seq)
) WITHOUT ROWID;
"""


class _Client:
    """A client's row number in the file (None until its first record) and its states."""

    __slots__ = ("classes", "id")

    def __init__(self, row: int | None) -> None:
        self.id = row
        self.classes: dict[int, ClassState] = {}


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
        self._cache: OrderedDict[str, _Client] = OrderedDict()
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
        fresh: list[tuple[int, float]] = []
        with self._lock, self._named_errors(), self._transaction():
            judgement = scan(rows, self._state, lambda row, area: fresh.append((row, area)))
            if fresh:
                self._write(rows, fresh)
        self._trim()
        return judgement

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class this client has records in."""
        return {label: state.cqs for label, state in self._states_of(client).items()}

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        return {label: np.array(state.records) for label, state in self._states_of(client).items()}

    def clients(self) -> Iterable[str]:
        """Clients with at least one record, sorted."""
        with self._lock, self._named_errors():
            names = [name for (name,) in self._db.execute("SELECT name FROM client")]
        return sorted(names)

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

    def _client(self, name: str) -> _Client:
        client = self._cache.get(name)
        if client is None:
            client = self._cache[name] = self._load(name)
        else:
            self._cache.move_to_end(name)
        return client

    def _load(self, name: str) -> _Client:
        found = self._db.execute("SELECT id FROM client WHERE name = ?", (name,)).fetchone()
        client = _Client(found[0] if found else None)
        if client.id is not None:
            query = "SELECT label, x, y, area FROM record WHERE client = ? ORDER BY label, seq"
            for label, x, y, area in self._db.execute(query, (client.id,)):
                state = client.classes.get(label)
                if state is None:
                    state = client.classes[label] = ClassState()
                state.cqs += area
                state.records.append((x, y))
        return client

    def _state(self, name: str, label: int) -> ClassState:
        classes = self._client(name).classes
        state = classes.get(label)
        if state is None:
            state = classes[label] = ClassState()
        return state

    def _write(self, rows: Rows, fresh: list[tuple[int, float]]) -> None:
        """Insert the fresh rows; their states hold them already, so numbering goes backwards from the newest."""
        values = []
        older: dict[tuple[int, int], int] = {}
        for row, area in reversed(fresh):
            name, label = rows.clients[rows.owner[row]], rows.labels[row]
            client = self._client(name)
            if client.id is None:
                client.id = self._db.execute("INSERT INTO client (name) VALUES (?)", (name,)).lastrowid
            key = rows.owner[row], label
            older[key] = older.get(key, len(client.classes[label].records)) - 1
            values.append((client.id, label, older[key], rows.x[row], rows.y[row], area))
        self._db.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", values)

    def _states_of(self, client: str) -> dict[int, ClassState]:
        with self._lock, self._named_errors():
            return self._load(check_client(client)).classes

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
