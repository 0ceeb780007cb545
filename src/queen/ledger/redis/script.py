"""What is sent to a Redis ledger's servers, the scripts beside this module, and the address it is sent to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from urllib.parse import urlsplit

from queen.errors import OptionError

SCHEMES = {"valkey": "redis", "valkeys": "rediss"}


@dataclass(frozen=True)
class Script:
    """A Lua script in a file of this package."""

    name: str

    @cached_property
    def text(self) -> str:
        """The source that the server runs."""
        return resources.files("queen.ledger.redis").joinpath(self.name).read_text(encoding="utf-8")

    @cached_property
    def sha(self) -> str:
        """The name by which the server knows it."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class ScriptCall:
    """One run of a script; all its keys lie in one slot of a cluster."""

    keys: tuple[str, ...]
    arguments: tuple[bytes | str | int, ...]


def parse_address(url: str) -> tuple[str, str]:
    """An address as it may be shown, without a password, and as redis-py takes it."""
    parts = urlsplit(url)
    scheme = SCHEMES.get(parts.scheme, parts.scheme)
    if scheme not in ("redis", "rediss"):
        raise OptionError(f"expected redis://HOST:PORT/NUMBER, rediss:// or valkey://, got '{parts.scheme}://...'")
    try:
        place = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError as error:
        raise OptionError(f"expected redis://HOST:PORT/NUMBER: {error}") from error
    return f"{parts.scheme}://{place}{parts.path}", parts._replace(scheme=scheme).geturl()
