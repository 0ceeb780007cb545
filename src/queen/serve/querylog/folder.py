"""The folder of the query log: files begun, ended and deleted in time, and read in order of time."""

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
from queen.serve.querylog.format import MARKER_BYTES, Damage, Logged, encode, make_header, read_segment
from queen.serve.telemetry.log import log

DAY = 86400.0
NAME = re.compile(r"(?P<start>\d{13,})-(?P<writer>[0-9a-f]{16})-(?P<number>\d{6,})\.queries")


@dataclass(frozen=True)
class LogFile:
    """A file of the log: when it was begun (milliseconds), by which writer, as its how manyeth."""

    path: Path
    start: int
    writer: str
    number: int


class LogFolder:
    """Files of one writer in a folder: rotated by size and age, and the oldest of all writers deleted in time."""

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
        self.folder = _private(folder)
        self._max_bytes, self._max_age, self._compress = max_bytes, max_days * DAY, compress
        self._segment_bytes = min(segment_bytes, max_bytes // 4)
        self._segment_seconds = segment_seconds
        self._writer, self._number = secrets.token_hex(8), 0
        self._file: int | None = None
        self._path, self._marker = folder, b""
        self._size, self._records, self._opened = 0, 0, 0.0  # of the open file
        self._synced = True

    def write(self, entries: Sequence[Logged]) -> None:
        """Append the entries, all in one write unless a file is full."""
        parts: list[bytes] = []
        for entry in entries:
            if self._file is None:
                self._open(entry.at)
            record = encode(entry, self._marker, compress=self._compress)
            if self._size + len(record) > self._segment_bytes and (self._records or parts):
                self._append(parts)
                self.end()
                parts = []
                self._open(entry.at)
                record = encode(entry, self._marker, compress=self._compress)
            parts.append(record)
            self._size += len(record)
        self._append(parts)

    def _append(self, parts: list[bytes]) -> None:
        self._put(b"".join(parts))
        self._records += len(parts)

    def _put(self, data: bytes) -> None:
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
        fcntl.flock(self._file, fcntl.LOCK_EX)  # says to other processes that this file is in use
        self._number += 1
        self._opened, self._records = time.monotonic(), 0
        header = make_header(self._marker, time.time())
        self._put(header)
        self._size = len(header)

    def sync(self) -> None:
        """Have everything written so far survive a loss of power; end a file that is old enough."""
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
        """Close the file after an error; a file without records goes."""
        with suppress(OSError):
            self.end()
        if not self._records:
            with suppress(OSError):
                self._path.unlink()

    def retain(self) -> None:
        """Delete files that are too old, and the oldest until there is room for a full one."""
        now, found = time.time(), sorted(_files(self.folder), key=lambda one: (one.start, one.number))
        states = {one.path: state for one in found if (state := _state(one.path)) is not None}
        total = sum(state.st_size for state in states.values())
        room = self._segment_bytes - (self._size if self._file is not None else 0)
        for path, state in states.items():
            expired = now - state.st_mtime > self._max_age
            if (expired or total + room > self._max_bytes) and _delete(path):
                total -= state.st_size


def read_log(
    folder: str | os.PathLike[str],
    since: float | None = None,
    until: float | None = None,
    *,
    on_damage: Callable[[Damage], None] | None = None,
) -> Iterator[Logged]:
    """All recorded requests from `since` to before `until` (Unix seconds), in order of time.

    Requests of one server process come in the order in which it took them, even if its clock was set back.
    """
    path = Path(folder)
    files = _files(path) if path.is_dir() else []
    if not files:
        raise OptionError(f"no query log in '{path}': the server writes one with --record '{path}'")
    chains: dict[str, list[LogFile]] = {}
    for one in sorted(files, key=lambda one: one.number):
        chains.setdefault(one.writer, []).append(one)
    low, high = -inf if since is None else since, inf if until is None else until
    streams = [
        (chain[0].start / 1000, _chain([one.path for one in chain], on_damage or _warn, low, high))
        for chain in chains.values()
    ]
    return _merge(sorted(streams, key=lambda stream: stream[0]))


def _chain(paths: list[Path], on_damage: Callable[[Damage], None], low: float, high: float) -> Iterator[Logged]:
    for path in paths:
        yield from read_segment(path, on_damage, since=low, until=high)


def _merge(streams: list[tuple[float, Iterator[Logged]]]) -> Iterator[Logged]:
    """Streams in order of time. One is opened only when its time has come: every restart of a server begins one."""
    heap: list[tuple[float, int, Logged]] = []
    opened = 0

    def pull(number: int, not_before: float) -> None:
        entry = next(streams[number][1], None)
        if entry is not None:
            heapq.heappush(heap, (max(entry.at, not_before), number, entry))

    while heap or opened < len(streams):
        while opened < len(streams) and (not heap or streams[opened][0] <= heap[0][0]):
            pull(opened, streams[opened][0])
            opened += 1
        if heap:
            when, number, entry = heap[0]
            heapq.heappop(heap)
            yield entry
            pull(number, when)


def _warn(damage: Damage) -> None:
    log("query_log_damaged", level="warning", file=damage.path, offset=damage.offset, why=damage.why)


def _files(folder: Path) -> list[LogFile]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise OptionError(f"cannot read the folder '{folder}': {error.strerror}") from error
    found = [(name, match) for name in names if (match := NAME.fullmatch(name))]
    return [LogFile(folder / name, int(m["start"]), m["writer"], int(m["number"])) for name, m in found]


def _private(folder: Path) -> Path:
    """The folder, which only its owner may enter: it holds what clients sent."""
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


def _state(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # another process was faster
        return None


def _delete(path: Path) -> bool:
    """Whether a file could be deleted; one that is being written is left alone."""
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
