"""A durable ledger in one SQLite file: record, commit, answer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from math import inf
from os import PathLike, fspath
from pathlib import Path

from queen.core.sensitivity import Floats
from queen.errors import LedgerError, LostStateError
from queen.ledger.base import BINDING, LedgerBase
from queen.ledger.charge import Journal
from queen.ledger.clock import LedgerClock
from queen.ledger.decide import decide
from queen.ledger.rows import Rows, Scope, check_client
from queen.ledger.sqlite import events, usages
from queen.ledger.sqlite import schema as tables
from queen.ledger.sqlite.cache import StateCache
from queen.ledger.sqlite.clock import FileClock
from queen.ledger.sqlite.open import SCHEMA_VERSION, make_private, named_errors, prepare
from queen.ledger.sqlite.schema import Touched, number
from queen.ledger.sqlite.watch import FileWatch
from queen.ledger.state import ScopeState
from queen.ledger.words import Budget, Event, Judgement, Standing, check_event, make_event
from queen.sentinel.bets import Test

MIB = 1 << 20


class SqliteLedger(LedgerBase):
    """Write-ahead log, synchronous FULL: an acknowledged record survives a power cut.

    Decisions are made by the same procedure as in memory. The file holds the records in order, and CQS is the sum of
    their areas in that order, so a reopened ledger continues bit for bit. Every batch is counted and committed,
    whatever the verdicts, so that the time it takes reveals nothing. Clients that asked lately stay in memory, about
    `cache` bytes of them. Several processes may share a file and stay exact (each call takes the write lock first and
    drops its cache when another process has written), but only one at a time makes progress: for throughput let one
    process own the file. With a `witness`, a file to remember it in, one that has lost records is refused when opened.
    Budgets renew by the `clock`; one that is behind the time in the file is refused, unless `any_clock` will do.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        cache: int = 256 * MIB,
        timeout: float = 5.0,
        witness: str | PathLike[str] | None = None,
        clock: LedgerClock | None = None,
        any_clock: bool = False,
    ) -> None:
        try:
            self.path = fspath(path)
        except TypeError as error:
            raise LedgerError(f"expected the path of a file, got {type(path).__name__}") from error
        self._named_errors = partial(named_errors, self.path)
        self._timeout, self._clock = timeout, FileClock(clock)
        self._cache = StateCache(cache)
        self._numbers: dict[tuple[str, int], int] = {}  # of tests, by account and id; they never change
        self._lock = threading.Lock()
        self._watch = FileWatch(self.path, None if witness is None else Path(witness))
        self._watch.refuse_older_file()
        make_private(self.path)
        with self._named_errors():
            self._db = sqlite3.connect(self.path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            with self._named_errors():
                prepare(self._db, self.path, timeout)
                self._cached_version = self._data_version()
                self._clock.begin(self._db, self.path, any_clock=any_clock)
            self._watch.begin()
            if witness is not None:
                with self._writing():
                    self._watch.rise_now()  # what comes now does not pass for what was before
                self._watch.save()
        except BaseException:
            self._db.close()
            raise

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge, record and commit; if the commit fails nothing is remembered and `LedgerError` is raised."""
        journal = Journal()
        touched: Touched = {}

        def state_of(scope: Scope) -> ScopeState:
            state = self._state(scope.name, group=scope.group)
            touched.setdefault((scope.group, scope.name), (state, state.memory.pictures, state.memory.answered))
            return state

        with self._writing():
            test, now = rows.bets.test if rows.bets else None, self._clock.now()
            judgement = decide(rows, state_of, journal, test.bar(self._number_of(test)) if test else inf, now=now)
            tables.write(self._db, touched, journal, test)
            if journal.renews:
                self._clock.remember(self._db, now)
            for notice in judgement.notices:
                self._log_event(make_event(notice.what, notice.standing, client=notice.client))
            self._cache.measure(touched, (state for state, *_ in journal.records))
        return judgement

    def now(self) -> int:
        """The time by which budgets renew."""
        return self._clock.now()

    def accept_clock(self, actor: str) -> None:
        """Let no use of a budget lie after now; see `Ledger`."""
        event = make_event("clock", Standing("ledger", group=False), actor=check_client(actor))
        with self._writing():
            usages.end_usages(self._db, self._clock.accept(self._db))
            self._cache.clear()
            self._log_event(event)

    def number_of(self, test: Test, *, claim: bool = True) -> int:
        """The number of a test among those of its account; a new one gets the next if it is to `claim` it."""
        if not claim:
            with self._lock, self._named_errors():
                return tables.number_test(self._db, test, claim=False)
        with self._writing():
            return self._number_of(test)

    def _number_of(self, test: Test) -> int:
        key = test.account, test.id
        if key not in self._numbers:
            self._numbers[key] = tables.number_test(self._db, test)
        return self._numbers[key]

    def records(self, client: str) -> dict[int, Floats]:
        """Recorded points (m, 2) by class, oldest first."""
        return self._peek(client).points()

    def clients(self) -> Iterable[str]:
        """Clients on record, sorted; one query, without reading anybody's records."""
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

        A file is read over a separate connection, so that judging goes on meanwhile.
        """
        if self.path in ("", ":memory:"):  # a caller that stops halfway must not keep the lock
            with self._reading() as db:
                standings = list(tables.each_standing(db))
            yield from standings
            return
        with self._reading() as db:
            yield from tables.each_standing(db)

    def events(self, *, after: int = 0, newest: int | None = None) -> list[Event]:
        """Notices and what operators did, oldest first; read as `each_standing` does."""
        with self._reading() as db:
            return events.read_events(db, after, newest)

    def acknowledgements(self) -> dict[int, str]:
        """Who has read which event."""
        with self._reading() as db:
            return events.read_acknowledgements(db)

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has read an event."""
        check_client(actor)
        with self._writing():
            check_event(event, number(self._db, "SELECT count(*) FROM event"))
            self._db.execute("UPDATE event SET acknowledged = ? WHERE id = ?", (actor, event))

    def _operate(self, order: str, name: str, actor: str, *, group: bool = False, budget: Budget | None = None) -> None:
        check_client(actor)
        with self._writing():  # the order and its event in one transaction
            state = self._state(check_client(name), group=group)
            self._log_event(make_event(order, state.standing(name, group=group), actor=actor))
            state.obey(order, budget)
            if state.id is None:
                memory = state.memory
                tables.write(self._db, {(group, name): (state, memory.pictures, memory.answered)}, Journal(), None)
            elif order == "pardon":
                tables.drop_winnings(self._db, state)
            tables.write_scopes(self._db, [state])
            self._cache.measure([(group, name)], ())

    def fact(self, name: str) -> str | None:
        """Something that is true of the whole ledger; see `Ledger`."""
        with self._lock, self._named_errors():
            return events.read_fact(self._db, name)

    def set_fact(self, name: str, value: str, *, replace: bool = True) -> str:
        """Say something of the whole ledger, and return what holds."""
        with self._writing():
            return events.write_fact(self._db, name, value, replace=replace)

    def rebind(self, binding: str, actor: str, *, name: str, forget_coverage: bool) -> None:
        """Say what the ledger is for from now on, in one transaction; see `Ledger`."""
        event = make_event("rebind", Standing(check_client(name), group=False), actor=check_client(actor))
        with self._writing():
            if forget_coverage:
                usages.drop_coverage(self._db)
                self._cache.clear()
            events.write_fact(self._db, BINDING, binding, replace=True)
            self._log_event(event)

    def check(self) -> None:
        """Commit something that changes nothing; raise `LedgerError` if that is not possible."""
        with self._writing():
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def verify(self) -> None:
        """Raise `LedgerError` if the file or its log is another one, or older than it was."""
        with self._lock, self._named_errors():
            try:
                self._watch.refuse_another_file()
                self._watch.compare(self._db)
            except LostStateError:
                self._watch.fold_log(self._db)
                raise
            self._watch.save()

    def close(self) -> None:
        """Close the file; SQLite folds the log into it."""
        if self._watch.is_remembered:
            with suppress(LedgerError), self._writing():
                self._watch.rise_now()  # every copy from before is older
        with self._lock:
            self._cache.clear()
            self._db.close()
            self._watch.save(closed=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Take the write lock, drop the cache if another process has written, and commit or roll back everything."""
        with self._lock, self._named_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                version = self._data_version()
                if version != self._cached_version:
                    self._cache.clear()
                    self._cached_version = version
                self._watch.refuse_another_file()
                yield
                risen = self._watch.rise(self._db)
                self._db.execute("COMMIT")
                self._watch.refuse_another_file()  # it may have been replaced meanwhile
                self._watch.note(risen)
            except BaseException:
                self._cache.clear()  # it may hold records that are not in the file
                self._numbers.clear()
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._watch.fold_log(self._db)
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A separate connection, so that judging goes on meanwhile; in memory there is only one, and it is locked."""
        with self._named_errors():
            if self.path in ("", ":memory:"):
                with self._lock:
                    yield self._db
            else:
                with closing(self._connect_to_read()) as db:
                    yield db

    def _connect_to_read(self) -> sqlite3.Connection:
        uri = f"{Path(self.path).absolute().as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=self._timeout)

    def _data_version(self) -> int:
        return number(self._db, "PRAGMA data_version")

    def _state(self, name: str, *, group: bool) -> ScopeState:
        state = self._cache.get((group, name))
        if state is None:
            state = tables.load(self._db, name, group=group)
            self._cache.add((group, name), state)
        return state

    def _add_event(self, event: Event) -> None:
        with self._writing():
            self._log_event(event)

    def _log_event(self, event: Event) -> None:
        """Log an event in a new epoch, so that no copy from before passes for this state."""
        events.write_event(self._db, event)
        self._watch.rise_now()

    def _peek(self, name: str, *, group: bool = False) -> ScopeState:
        with self._lock, self._named_errors():
            return tables.load(self._db, check_client(name), group=group, to_judge=False)
