"""The file of a SQLite ledger and its log: that they are the ones we opened, and no older than they were."""

from __future__ import annotations

import sqlite3
import time
from math import inf
from os.path import realpath
from pathlib import Path

from queen.errors import LedgerError, LostStateError
from queen.ledger.sqlite.events import read_fact, write_fact
from queen.ledger.sqlite.open import file_at, stored_facts
from queen.ledger.witness import ACCEPTED, EPOCH, EVERY, ID, Witness, new_id

WITH_LOG, WITHOUT_LOG = "with log", "without log"  # what a witness remembers the epoch of
Risen = tuple[str, dict[str, int]]


class FileWatch:
    """Watches a ledger's file and its write-ahead log, and raises its epoch; the ledger's lock must be held."""

    def __init__(self, path: str, witness: Path | None) -> None:
        self._path, self._shown = realpath(path), path
        self._log_path = f"{self._path}-wal"
        self._witness = Witness(self._path, witness)
        self._file: tuple[int, int] | None = None  # None: in memory
        self._log: tuple[int, int] | None = None
        self._log_problem: LostStateError | None = None
        self._risen = -inf  # when the epoch rose last

    def refuse_older_file(self) -> None:
        """Raise `LostStateError`, before anything is touched, if there is no file or one older than known.

        The log does not count here: where an older copy is put before a log that stays, SQLite would mix the two, and
        the epoch in the log would be right.
        """
        witness = self._witness
        if witness.path is None or witness.id is None:
            return
        facts = stored_facts(self._path)
        if file_at(self._path) is None:
            witness.meet(None, None)
        elif facts.get(ID, witness.id) == witness.id:  # of another one we know more when it is open
            witness.compare(WITHOUT_LOG, int(facts.get(EPOCH, 0)), witness.epoch(WITHOUT_LOG))

    def begin(self) -> None:
        """Watch the file and the log that are there now; SQLite keeps the log until the last connection closes."""
        self._file, self._log = file_at(self._path), file_at(self._log_path)

    def refuse_another_file(self) -> None:
        """If the file or its log is no longer at its path, what was just written would be lost at the next start."""
        if self._log_problem is not None:
            raise self._log_problem
        if self._file is None:
            return
        if file_at(self._path) != self._file:
            raise LedgerError(f"ledger '{self._shown}' was moved or deleted while in use: put it back, or start anew")
        if file_at(self._log_path) != self._log:
            raise self._log_lost("")

    def fold_log(self, db: sqlite3.Connection) -> None:
        """If the log was deleted, put what it held into the file while we can still read it; this ledger is over."""
        is_ours = self._file is not None and file_at(self._path) == self._file
        if not is_ours or self._log_problem is not None or file_at(self._log_path) == self._log:
            return
        busy, pages, folded = db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        saved = not busy and pages == folded
        self._log_problem = self._log_lost(", but nothing is lost" if saved else ", and records may be lost")
        raise self._log_problem

    def _log_lost(self, what: str) -> LostStateError:
        return LostStateError(
            f"the log of ledger '{self._shown}' ({self._shown}-wal) was deleted while in use{what}: start anew"
        )

    def compare(self, db: sqlite3.Connection) -> tuple[str | None, int]:
        """Id and epoch of the file; `LostStateError` if they are not as the witness knows them."""
        ledger_id, epoch = read_fact(db, ID), int(read_fact(db, EPOCH) or 0)
        self._witness.meet(ledger_id, read_fact(db, ACCEPTED))
        self._witness.compare(WITH_LOG, epoch, self._witness.epoch(WITH_LOG))
        self._witness.problem = None
        return ledger_id, epoch

    def rise(self, db: sqlite3.Connection) -> Risen | None:
        """Raise the epoch in the transaction that is open, if it is time; what comes back is noted once committed."""
        if time.monotonic() < self._risen + EVERY:
            return None
        ledger_id, epoch = self.compare(db)
        if ledger_id is None:
            ledger_id = write_fact(db, ID, new_id(), replace=False)
        write_fact(db, EPOCH, str(epoch + 1), replace=True)
        return ledger_id, {WITH_LOG: epoch + 1}

    def note(self, risen: Risen | None) -> None:
        """Remember what `rise` returned, which has been committed."""
        if risen is not None:
            self._risen = time.monotonic()
            self._witness.note(*risen)
            self.save(every=EVERY)

    def rise_now(self) -> None:
        """Let the epoch rise with the transaction that is open, whenever it rose last."""
        self._risen = -inf

    @property
    def is_remembered(self) -> bool:
        """Whether another process will know the epoch."""
        return self._witness.path is not None and self._witness.problem is None and self._log_problem is None

    def save(self, *, every: float = 0.0, closed: bool = False) -> None:
        """Write the witness if the epoch rose, or the file was `closed`, with the epoch it has without its log."""
        if self._witness.path is None or not (self._witness.is_new or closed):
            return
        facts = stored_facts(self._path)
        if self._witness.problem is None and facts.get(ID) == self._witness.id:
            self._witness.note(None, {WITHOUT_LOG: int(facts.get(EPOCH, 0))})
        self._witness.save(every=every)
