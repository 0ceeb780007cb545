"""The folder of the query log: its files are begun, ended and deleted here, and read in order of time."""

from __future__ import annotations

import fcntl
import heapq
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from queen.errors import OptionError
from queen.serve.querylog.clock import SteadyClock
from queen.serve.querylog.format import MARKER_BYTES, Damage, LoggedRequest, encode, make_header, read_segment
from queen.serve.telemetry.log import log

DAY = 86400.0
NAME = re.compile(r"(?P<start>\d{13,})-(?P<writer>[0-9a-f]{16})-(?P<number>\d{6,})\.queries")


@dataclass(frozen=True)
class LogFile:
    """A file of the log: when it was begun (Unix milliseconds), by which writer, and its number among that writer's."""

    path: Path
    start: int
    writer: str
    number: int


class LogFolder:
    """One writer's files in a folder, rotated by size and age. Old files are deleted, whichever writer made them."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_days: float,
        segment_bytes: int,
        segment_seconds: float,
        compress: bool,
    ) -> None:
        self.folder = _make_private(folder)
        self._max_bytes, self._max_age, self._compress = max_bytes, max_days * DAY, compress
        self._segment_bytes = min(segment_bytes, max_bytes // 4)
        self._segment_seconds = segment_seconds
        self._writer, self._number = secrets.token_hex(8), 0
        self._file: int | None = None
        self._path, self._marker = folder, b""
        self._size, self._records, self._opened = 0, 0, 0.0  # of the open file
        self._synced = True
        self._clock, self._warned = SteadyClock(), False

    def write(self, requests: Sequence[LoggedRequest]) -> None:
        """Append records of the requests, all in one write unless a file is full."""
        parts: list[bytes] = []
        for request in requests:
            if self._file is None:
                self._open(request.at)
            record = encode(request, self._marker, compress=self._compress)
            if self._size + len(record) > self._segment_bytes and (self._records or parts):
                self._append(parts)
                self.end()
                parts = []
                self._open(request.at)
                record = encode(request, self._marker, compress=self._compress)
            parts.append(record)
            self._size += len(record)
        self._append(parts)

    def _append(self, parts: list[bytes]) -> None:
        self._write_all(b"".join(parts))
        self._records += len(parts)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._file is not None:
            self._synced = False
            left = left[os.write(self._file, left) :]

    def _open(self, at: float) -> None:
        """Begin a file, and make room for it."""
        self.retain()
        self._marker = secrets.token_bytes(MARKER_BYTES)
        self._path = self.folder / f"{max(0, int(at * 1000)):013d}-{self._writer}-{self._number:06d}.queries"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)  # tells other processes that this file is in use
        self._number += 1
        self._opened, self._records = time.monotonic(), 0
        header = make_header(self._marker, time.time())
        self._write_all(header)
        self._size = len(header)

    def sync(self) -> None:
        """Make what was written so far survive a loss of power; end the file if it is old enough."""
        if self._file is None:
            return
        if not self._synced:
            os.fsync(self._file)
            self._synced = True
        if time.monotonic() - self._opened >= self._segment_seconds:
            self.end()

    def end(self) -> None:
        """Close the file, if one is open."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def abandon(self) -> None:
        """Close the file after an error, and delete it if it has no records."""
        with suppress(OSError):
            self.end()
        if not self._records:
            with suppress(OSError):
                self._path.unlink()

    def retain(self) -> None:
        """Delete files that are too old, and the oldest until there is room for a full one."""
        now = self._clock.now()
        stats = {path: stat for path in _oldest_first(self.folder) if (stat := _stat(path)) is not None}
        expired = {path for path, stat in stats.items() if now - stat.st_mtime > self._max_age}
        if not self._clock.is_believed(stat.st_mtime for stat in stats.values()):
            self._warn_of_jump(len(expired))
            expired.clear()
        total = sum(stat.st_size for stat in stats.values())
        room = self._segment_bytes - (self._size if self._file is not None else 0)
        for path, stat in stats.items():
            if (path in expired or total + room > self._max_bytes) and _delete(path):
                total -= stat.st_size

    def _warn_of_jump(self, files: int) -> None:
        if files and not self._warned:
            self._warned = True
            why = "the clock has jumped, or nothing was recorded for over a day; set the clock right within a day"
            log("recording_clock_jumped", level="warning", folder=self.folder, files_that_look_old=files, why=why)


def read_log(
    folder: str | os.PathLike[str],
    since: float | None = None,
    until: float | None = None,
    *,
    on_damage: Callable[[Damage], None] | None = None,
) -> Iterator[LoggedRequest]:
    """All recorded requests from `since` to before `until` (Unix seconds), in order of time.

    Requests of one server process come in the order in which it took them, even if its clock was set back meanwhile.
    """
    path = Path(folder)
    files = _list_files(path) if path.is_dir() else []
    if not files:
        raise OptionError(f"no query log in '{path}': the server writes one with --record '{path}'")
    by_writer: dict[str, list[LogFile]] = {}
    for file in sorted(files, key=lambda file: file.number):
        by_writer.setdefault(file.writer, []).append(file)
    low, high = -inf if since is None else since, inf if until is None else until
    streams = [
        (own[0].start / 1000, _read_files([file.path for file in own], on_damage or _warn, low, high))
        for own in by_writer.values()
    ]
    return _merge(sorted(streams, key=lambda stream: stream[0]))


def _read_files(
    paths: list[Path], on_damage: Callable[[Damage], None], low: float, high: float
) -> Iterator[LoggedRequest]:
    for path in paths:
        yield from read_segment(path, on_damage, since=low, until=high)


def _merge(streams: list[tuple[float, Iterator[LoggedRequest]]]) -> Iterator[LoggedRequest]:
    """Merge streams, given with the time they begin, in order of time.

    A stream is opened only when its time has come: every restart of a server begins one, so there may be very many.
    """
    heap: list[tuple[float, int, LoggedRequest]] = []
    opened = 0

    def pull(number: int, not_before: float) -> None:
        request = next(streams[number][1], None)
        if request is not None:
            heapq.heappush(heap, (max(request.at, not_before), number, request))

    while heap or opened < len(streams):
        while opened < len(streams) and (not heap or streams[opened][0] <= heap[0][0]):
            pull(opened, streams[opened][0])
            opened += 1
        if heap:
            at, number, request = heapq.heappop(heap)
            yield request
            pull(number, at)


def _warn(damage: Damage) -> None:
    log("query_log_damaged", level="warning", file=damage.path, offset=damage.offset, why=damage.reason)


def _list_files(folder: Path) -> list[LogFile]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise OptionError(f"cannot read the folder '{folder}': {error.strerror}") from error
    matches = [match for name in names if (match := NAME.fullmatch(name))]
    return [LogFile(folder / m.string, int(m["start"]), m["writer"], int(m["number"])) for m in matches]


def _oldest_first(folder: Path) -> list[Path]:
    """All files, those of one writer in the order in which it wrote them, even if its clock was set back meanwhile."""
    begun, files = dict[str, int](), list[tuple[int, int, Path]]()
    for file in sorted(_list_files(folder), key=lambda file: file.number):
        begun[file.writer] = max(file.start, begun.get(file.writer, 0))
        files.append((begun[file.writer], file.number, file.path))
    return [path for _, _, path in sorted(files)]


def _make_private(folder: Path) -> Path:
    """Make the folder, and check that only its owner may enter it: it holds what clients sent."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode & 0o777
    except OSError as error:
        raise OptionError(f"cannot make the folder '{folder}': {error.strerror}") from error
    if mode & 0o077:
        raise OptionError(
            f"'{folder}' can be entered by others (mode {mode:03o}), and it would hold clients' inputs: "
            f"chmod 700 '{folder}'"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OptionError(f"cannot write to '{folder}'")
    return folder


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # another process has deleted it meanwhile
        return None


def _delete(path: Path) -> bool:
    """Delete a file unless it is being written; returns whether it was deleted."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(file)
    return True
