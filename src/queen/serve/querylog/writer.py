"""The query log (`serve --record DIR`): what clients sent, kept for a while to find extractors afterwards.

Queries are handed to a thread that writes them behind the answers: a query may be missing in the log (a crash, a full
disk, a full queue), and no answer ever waits for the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from queen.core import inputs
from queen.errors import OptionError
from queen.serve.querylog.folder import LogFolder, read_log
from queen.serve.querylog.format import Damage, Logged, check_inputs
from queen.serve.telemetry.log import log
from queen.types import Inputs

if TYPE_CHECKING:
    from queen.serve.telemetry.metrics import Metrics

__all__ = ["Damage", "Logged", "QueryLog", "read_log"]

MIB = 1 << 20
GATHER = 0.02  # seconds in which queries gather, so that one write carries many
REST = 60.0  # seconds after a failed write until the next attempt, and between two rounds of deleting
OVERHEAD = 512  # bytes of a waiting query beside its tensors


class QueryLog:
    """Records queries in the background. At most `queue_bytes` wait; beyond that queries are dropped and counted.

    When the folder cannot be written (a full disk) recording stops, says so, and is tried again a minute later.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int = 1024 * MIB,
        max_days: float = 30.0,
        segment_bytes: int = 64 * MIB,
        segment_seconds: float = 3600.0,
        queue_bytes: int = 64 * MIB,
        sync_seconds: float = 1.0,
        compress: bool = True,
        metrics: Metrics | None = None,
    ) -> None:
        if min(max_bytes, max_days, segment_bytes, segment_seconds, queue_bytes, sync_seconds) <= 0:
            raise OptionError("sizes and times of a query log must be positive")
        self._shelf = LogFolder(
            Path(folder),
            max_bytes=max_bytes,
            max_days=max_days,
            segment_bytes=segment_bytes,
            segment_seconds=segment_seconds,
            compress=compress,
        )
        self._queue_bytes, self._sync_seconds, self._metrics = queue_bytes, sync_seconds, metrics
        self._waiting: deque[Logged] = deque()
        self._bytes = 0
        self._busy = self._closing = False
        self._resume = 0.0  # when to write again after an error
        self._next_sync = self._next_retain = 0.0
        self._changed = threading.Condition()
        self.dropped = 0  # rows
        self.recording = True
        self._say(recording=True)
        self._thread = threading.Thread(target=self._run, name="queen-record", daemon=True)
        self._thread.start()

    def write(self, client: str, groups: Sequence[str], batch: Inputs, at: float) -> None:
        """Have one request recorded; returns at once. The tensors must not be changed afterwards."""
        if not isfinite(at):
            raise OptionError(f"expected a time in seconds, got {at}")
        size = check_inputs(batch) + OVERHEAD
        entry = Logged(float(at), client, tuple(groups), batch)
        with self._changed:
            full = self._bytes + size > self._queue_bytes and self._waiting
            if not (full or self._closing or time.monotonic() < self._resume):
                self._waiting.append(entry)
                self._bytes += size
                if len(self._waiting) == 1:
                    self._changed.notify_all()
                return
        self._drop([entry])

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything handed over so far is written; whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._busy), timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        self._say(recording=False)

    def _run(self) -> None:
        while True:
            entries = self._take()
            try:
                if entries:
                    self._shelf.write(entries)
                self._keep_house()
            except Exception as error:  # whatever it is, answers must go on, and so must this thread
                self._stop(error, entries)
            else:
                if entries and not self.recording:
                    log("recording_resumed", folder=self._shelf.folder)
                    self._say(recording=True)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if self._closing and not self._waiting:
                    break
        self._shelf.abandon()

    def _take(self) -> list[Logged]:
        """Everything that waits, and what comes in the next moment."""
        with self._changed:
            if not self._waiting and not self._closing:
                self._changed.wait(self._sync_seconds)
            if self._waiting and not self._closing:
                self._busy = True
                self._changed.wait_for(lambda: self._closing, GATHER)
            entries, self._bytes = list(self._waiting), 0
            self._waiting.clear()
            self._busy = bool(entries)
            return entries

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now >= self._next_sync:
            self._shelf.sync()
            self._next_sync = now + self._sync_seconds
        if now >= self._next_retain:
            self._shelf.retain()
            self._next_retain = now + REST

    def _stop(self, error: Exception, entries: list[Logged]) -> None:
        """Answers go on without a log."""
        self._shelf.abandon()
        with self._changed:
            self._resume = time.monotonic() + REST
            entries = [*entries, *self._waiting]
            self._waiting.clear()
            self._bytes = 0
        self._drop(entries)
        self._say(recording=False)
        why = getattr(error, "strerror", None) or str(error)
        log("recording_stopped", level="error", folder=self._shelf.folder, why=why, again_in_seconds=REST)

    def _drop(self, entries: Sequence[Logged]) -> None:
        rows = sum(inputs.count(entry.inputs) for entry in entries)
        with self._changed:
            first, self.dropped = not self.dropped, self.dropped + rows
        if self._metrics is not None and rows:
            self._metrics.record_dropped(rows)
        if first and rows:
            log("recording_incomplete", level="warning", folder=self._shelf.folder, dropped_rows=rows)

    def _say(self, *, recording: bool) -> None:
        self.recording = recording
        if self._metrics is not None:
            self._metrics.set_recording(recording)
