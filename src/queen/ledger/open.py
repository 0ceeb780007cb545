"""Ledgers by address, as they are named on command lines and in settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from queen.errors import OptionError
from queen.ledger.base import Ledger
from queen.ledger.memory import MemoryLedger
from queen.ledger.redis.layout import Migrated
from queen.ledger.redis.layout import migrate as migrate_redis
from queen.ledger.redis.ledger import RedisLedger
from queen.ledger.redis.script import parse_address
from queen.ledger.sqlite.ledger import SqliteLedger
from queen.ledger.sqlite.open import stored_version
from queen.ledger.witness import witness_path

FORMS = """a path, or sqlite:///PATH (sqlite:////PATH from the root): a file
  redis://HOST:PORT/NUMBER, rediss:// (with TLS), valkey://, valkeys://: a server that several may share
  memory://: gone when the process ends"""
SERVERS = ("redis", "rediss", "valkey", "valkeys")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "memory": (),
    "sqlite": ("any_clock", "cache", "timeout", "witness"),
    **dict.fromkeys(SERVERS, ("allow_volatile", "prefix", "timeout", "witness")),
}


def open_ledger(url: str | PathLike[str], **options: Any) -> Ledger:
    """The ledger at an address; `options` are the keyword parameters of its class.

    >>> open_ledger("memory://").standings()
    []
    """
    address = fspath(url) if isinstance(url, PathLike) else url
    if not isinstance(address, str):
        raise OptionError(f"expected the address of a ledger as text, got {type(url).__name__}")
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "sqlite", f"/{address}"
    opener = _opener(scheme, address, rest)
    if opener is None:
        raise OptionError(f"no ledger at '{scheme}://...'; expected one of\n  {FORMS}")
    for name in options:
        if name not in OPTIONS[scheme]:
            known = ", ".join(OPTIONS[scheme]) or "none"
            raise OptionError(f"a ledger at {scheme}:// has no option '{name}'; known: {known}")
    return opener(**options)


def witness_in(folder: Path, url: str) -> Path:
    """The file in a folder in which a witness remembers the ledger at an address; no password gets there."""
    scheme, separator, rest = url.partition("://")
    if scheme in SERVERS:
        return witness_path(folder, parse_address(url)[0])
    return witness_path(folder, str(Path(rest[1:] if separator else url).absolute()))


def migrate_ledger(
    url: str, *, prefix: str = "queen", allow_volatile: bool = False, advance: Callable[[], None] = lambda: None
) -> Migrated:
    """Bring a ledger of an older version to this one; `advance` is called after every client or group.

    A file is migrated whenever it is opened, so nothing else is done; `prefix` and `allow_volatile` are for Redis.
    """
    scheme, separator, _ = url.partition("://")
    if scheme in SERVERS:
        return migrate_redis(url, prefix=prefix, allow_volatile=allow_volatile, advance=advance)
    path = Path(url if not separator else url.removeprefix("sqlite:///"))
    if scheme == "memory" or not path.is_file():
        raise OptionError(f"no ledger '{url}' to migrate; expected one of\n  {FORMS}")
    version = stored_version(path)
    with closing(open_ledger(url)) as ledger:
        scopes = 0
        for _ in ledger.each_standing():
            scopes += 1
            advance()
    return Migrated(scopes, scopes if version != stored_version(path) else 0)


def _opener(scheme: str, address: str, rest: str) -> Callable[..., Ledger] | None:
    if scheme == "memory" and not rest:
        return MemoryLedger
    if scheme == "sqlite" and rest.startswith("/") and rest != "/":
        return lambda **options: SqliteLedger(rest[1:], **options)
    if scheme in SERVERS:
        return lambda **options: RedisLedger(address, **options)
    return None
