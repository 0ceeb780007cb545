"""A durable ledger in one SQLite file: record, commit, answer."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from os import PathLike, fspath, stat
from os.path import abspath
from pathlib import Path

import numpy as np

from queen.core.sensitivity import Floats
from queen.errors import LedgerError, OptionError
from queen.ledger import sqlite_schema as tables
from queen.ledger.base import Budget, Derived, Event, Judgement, Standing, check_budget
from queen.ledger.decide import Journal, ScopeState, scan
from queen.ledger.rows import Rows, Scope, check_client
from queen.ledger.sqlite_schema import Key, Touched, number


class SqliteLedger(Derived):
    """Write-ahead log, synchronous FULL: an acknowledged record survives a power cut.

    Decisions are made by the same scan as in memory; the file holds the records in order, and CQS is their areas
    summed in that order, so a reopened ledger continues bit for bit. Every batch is counted and committed, whatever
    the verdicts, so that the time it takes tells nothing. Up to `cache` clients stay in memory. Several processes may
    share a file and stay exact (each call takes the write lock first and forgets its cache when another process has
    written), but only one at a time makes progress: for throughput let one process own the file.
    """

    def __init__(self, path: str | PathLike[str], *, cache: int = 100_000, timeout: float = 5.0) -> None:
        try:
            self.path = fspath(path)
        except TypeError as error:
            raise LedgerError(f"expected the path of a file, got {type(path).__name__}") from error
        self._cache_size, self._timeout = cache, timeout
        self._cache: OrderedDict[Key, ScopeState] = OrderedDict()
        self._lock = threading.Lock()
        with self._named_errors():
            self._db = sqlite3.connect(self.path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            with self._named_errors():
                tables.prepare(self._db, self.path, timeout)
                self._seen_version = self._data_version()
            self._place = abspath(self.path)
            self._file = _file_at(self._place)  # None: in memory
        except BaseException:
            self._db.close()
            raise

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge, record and commit; if the commit fails nothing is remembered and `LedgerError` is raised."""
        journal = Journal()
        touched: Touched = {}

        def state_of(scope: Scope) -> ScopeState:
            state = self._state(scope.name, group=scope.group)
            touched.setdefault((scope.group, scope.name), (state, state.memory.count if state.memory else 0))
            return state

        with self._writing():
            judgement = scan(rows, state_of, journal)
            tables.write(self._db, touched, only_queries=rows.bets is None)
            if journal.records:
                tables.write_records(self._db, journal)
            for standing, client in journal.alarms:
                tables.write_event(self._db, "alarm", standing, client=client)
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
                "SELECT name FROM name JOIN scope ON scope.id = name.scope "
                "WHERE NOT is_group AND (queries OR allowed OR budget IS NOT NULL)"
            ).fetchall()
        return sorted(name for (name,) in names)

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client or group stands."""
        return self._peek(name, group=group).standing(name, group=group)

    def each_standing(self) -> Iterator[Standing]:
        """Where all stand, one after the other, as they stood when this began.

        A file is read over a connection of its own, so that nobody has to wait to be judged meanwhile.
        """
        with self._named_errors():
            if self.path in ("", ":memory:"):
                with self._lock:
                    found = list(tables.each_standing(self._db))
                yield from found
                return
            with closing(self._connect_to_read()) as db:
                yield from tables.each_standing(db)

    def events(self) -> list[Event]:
        """Alarms and what operators did, oldest first."""
        with self._lock, self._named_errors():
            return tables.read_events(self._db)

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has seen an event."""
        check_client(actor)
        with self._writing():
            known = number(self._db, "SELECT count(*) FROM event")
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

    def check(self) -> None:
        """Commit something that changes nothing; `LedgerError` if that is not possible."""
        with self._writing():
            self._db.execute(f"PRAGMA user_version = {tables.SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file; SQLite folds the log into it."""
        with self._lock:
            self._cache.clear()
            self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Take the write lock, drop the cache if another process wrote, and commit or forget everything."""
        with self._lock, self._named_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                version = self._data_version()
                if version != self._seen_version:
                    self._cache.clear()
                    self._seen_version = version
                self._refuse_another_file()
                yield
                self._db.execute("COMMIT")
                self._refuse_another_file()  # which it may have become meanwhile
            except BaseException:
                self._cache.clear()  # it may hold records that are not in the file
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _connect_to_read(self) -> sqlite3.Connection:
        where = f"{Path(self.path).absolute().as_uri()}?mode=ro"
        return sqlite3.connect(where, uri=True, timeout=self._timeout)

    def _refuse_another_file(self) -> None:
        """What was just written is lost at the next start if the file is no longer where it was."""
        if self._file is not None and _file_at(self._place) != self._file:
            raise LedgerError(f"ledger '{self.path}' was moved or deleted while in use: put it back, or start anew")

    def _data_version(self) -> int:
        return number(self._db, "PRAGMA data_version")

    @contextmanager
    def _operation(self, what: str, name: str, actor: str, *, group: bool = False) -> Iterator[ScopeState]:
        """Change the state of a client or group and log who did it, with how it stood before, in one transaction."""
        check_client(actor)
        with self._writing():
            state = self._state(check_client(name), group=group)
            tables.write_event(self._db, what, state.standing(name, group=group), actor=actor)
            yield state
            tables.write(self._db, {(group, name): (state, state.memory.count if state.memory else 0)})

    def _state(self, name: str, *, group: bool) -> ScopeState:
        state = self._cache.get((group, name))
        if state is None:
            state = self._cache[group, name] = tables.load(self._db, name, group=group)
        else:
            self._cache.move_to_end((group, name))
        return state

    def _peek(self, name: str, *, group: bool = False) -> ScopeState:
        with self._lock, self._named_errors():
            return tables.load(self._db, check_client(name), group=group, with_memory=False)

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


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file is there, or None."""
    try:
        found = stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
