"""One server at a time per ledger file, and operators find out which one.

A locked file beside the ledger names the server; the lock goes with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from queen.errors import OptionError


def lease_path(ledger: str) -> Path | None:
    """The file beside a SQLite ledger that names its server; other ledgers have none."""
    scheme, separator, rest = ledger.partition("://")
    if not separator:
        return Path(f"{ledger}.server")
    return Path(f"{unquote(rest[1:])}.server") if scheme == "sqlite" else None


@contextmanager
def acquire(ledger: str, address: str) -> Iterator[None]:
    """Be the only server of this ledger inside the `with` block; `OptionError` if there is another one."""
    path = lease_path(ledger)
    if path is None:  # several servers may share it
        yield
        return
    with _open(path) as handle:
        if not _lock(handle):
            other = _read_address(handle)
            raise OptionError(
                f"ledger '{path.with_suffix('')}' is served already, at {other}: a file is for one server, "
                "and several servers share a redis:// ledger"
            )
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"address": address, "pid": os.getpid()}).encode(), 0)
        yield
        path.unlink(missing_ok=True)


def owner(ledger: str) -> str | None:
    """The address of the server that serves this ledger now, or None."""
    path = lease_path(ledger)
    if path is None or not path.exists():
        return None
    with _open(path) as handle:
        return None if _lock(handle) else _read_address(handle)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OptionError(f"cannot write '{path}': {error.strerror}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_address(handle: int) -> str:
    try:
        return str(json.loads(os.pread(handle, 4096, 0))["address"])
    except (ValueError, KeyError):
        return "an address it has not written down yet"
