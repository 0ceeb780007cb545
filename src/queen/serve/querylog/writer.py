"""The query log (`serve --record DIR`): what clients sent, recorded to find extractors afterwards.

A thread of its own writes the queries, so that no answer ever waits for the disk; the price is that a query may be
missing in the log (after a crash, with a full disk or a full queue).
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
from queen.serve.querylog.folder import LogFolder
from queen.serve.querylog.format import LoggedRequest, check_inputs
from queen.serve.telemetry.log import log
from queen.types import Inputs

if TYPE_CHECKING:
    from queen.serve.telemetry.metrics import Metrics

MIB = 1 << 20
GATHER = 0.02  # seconds to wait for more queries, so that one write carries many
REST = 60.0  # seconds after a failed write until the next attempt, and between two rounds of deleting
OVERHEAD = 512  # bytes that a waiting query takes beside its tensors


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
        self._folder = LogFolder(
            Path(folder),
            max_bytes=max_bytes,
            max_days=max_days,
            segment_bytes=segment_bytes,
            segment_seconds=segment_seconds,
            compress=compress,
        )
        self._queue_bytes, self._sync_seconds, self._metrics = queue_bytes, sync_seconds, metrics
        self._waiting: deque[LoggedRequest] = deque()
        self._bytes = 0
        self._busy = self._closing = False
        self._resume = 0.0  # when to write again after an error
        self._next_sync = self._next_retain = 0.0
        self._changed = threading.Condition()
        self.dropped = 0  # rows
        self.recording = True
        self._set_recording(recording=True)
        self._thread = threading.Thread(target=self._run, name="queen-record", daemon=True)
        self._thread.start()

    def write(self, client: str, groups: Sequence[str], batch: Inputs, at: float) -> None:
        """Record one request in the background; returns at once. The tensors must not be changed afterwards."""
        if not isfinite(at):
            raise OptionError(f"expected a time in seconds, got {at}")
        size = check_inputs(batch) + OVERHEAD
        request = LoggedRequest(float(at), client, tuple(groups), batch)
        with self._changed:
            full = self._bytes + size > self._queue_bytes and self._waiting
            if not (full or self._closing or time.monotonic() < self._resume):
                self._waiting.append(request)
                self._bytes += size
                if len(self._waiting) == 1:
                    self._changed.notify_all()
                return
        self._drop([request])

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything handed over so far is written; returns whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._busy), timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what still waits, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        self._set_recording(recording=False)

    def _run(self) -> None:
        while True:
            requests = self._take()
            try:
                if requests:
                    self._folder.write(requests)
                self._sync_and_retain()
            except Exception as error:  # whatever it is, answers must go on, and so must this thread
                self._pause(error, requests)
            else:
                if requests and not self.recording:
                    log("recording_resumed", folder=self._folder.folder)
                    self._set_recording(recording=True)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if self._closing and not self._waiting:
                    break
        self._folder.abandon()

    def _take(self) -> list[LoggedRequest]:
        """Everything that waits, and what comes in the next moment; nothing if there is none for a while."""
        with self._changed:
            if not self._waiting and not self._closing:
                self._changed.wait(self._sync_seconds)
            if self._waiting and not self._closing:
                self._busy = True
                self._changed.wait_for(lambda: self._closing, GATHER)
            requests, self._bytes = list(self._waiting), 0
            self._waiting.clear()
            self._busy = bool(requests)
            return requests

    def _sync_and_retain(self) -> None:
        """Have the folder sync its file and delete old ones, each when it is time."""
        now = time.monotonic()
        if now >= self._next_sync:
            self._folder.sync()
            self._next_sync = now + self._sync_seconds
        if now >= self._next_retain:
            self._folder.retain()
            self._next_retain = now + REST

    def _pause(self, error: Exception, requests: list[LoggedRequest]) -> None:
        """Stop recording for a while; answers go on without a log."""
        self._folder.abandon()
        with self._changed:
            self._resume = time.monotonic() + REST
            requests = [*requests, *self._waiting]
            self._waiting.clear()
            self._bytes = 0
        self._drop(requests)
        self._set_recording(recording=False)
        why = getattr(error, "strerror", None) or str(error)
        log("recording_stopped", level="error", folder=self._folder.folder, why=why, again_in_seconds=REST)

    def _drop(self, requests: Sequence[LoggedRequest]) -> None:
        rows = sum(inputs.count(request.inputs) for request in requests)
        with self._changed:
            first, self.dropped = not self.dropped, self.dropped + rows
        if self._metrics is not None and rows:
            self._metrics.record_dropped(rows)
        if first and rows:
            log("recording_incomplete", level="warning", folder=self._folder.folder, dropped_rows=rows)

    def _set_recording(self, *, recording: bool) -> None:
        self.recording = recording
        if self._metrics is not None:
            self._metrics.set_recording(recording)
