"""Where keys are kept, as digests: a file, or Redis beside the ledger."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from queen.atomic import write_atomically
from queen.errors import LedgerError, OptionError, SecretError
from queen.ledger.base import Budget
from queen.ledger.redis_client import RedisServers
from queen.serve.access.key import Key, budgets, from_plain, new_key, revoked_now, to_plain

__all__ = ["FileKeys", "Key", "KeyStore", "RedisKeys", "budgets", "open_keys"]

FORMAT = 1
REDIS = ("redis", "rediss", "valkey", "valkeys")  # ledgers that keep keys too
PATIENCE = 1.0  # seconds to wait for Redis


class KeyStore(Protocol):
    """Where keys are kept. Every call may block."""

    def keys(self) -> dict[str, Key]:
        """All keys by id, revoked ones too."""
        ...

    def version(self) -> object:
        """Something cheap that changes whenever any key changes."""
        ...

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        ...

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke the key of this id, or all keys of this name; those that were not revoked before are returned."""
        ...

    def close(self) -> None:
        """Give back connections."""
        ...


def open_keys(home: Path, ledger_url: str) -> KeyStore:
    """The keys that belong to a ledger: in Redis if it is there, else in the folder `home`."""
    return RedisKeys(ledger_url) if urlsplit(ledger_url).scheme in REDIS else FileKeys(home)


class FileKeys:
    """Keys in `home`/keys.json, which its owner alone may read; several processes may change it at once."""

    def __init__(self, home: Path) -> None:
        self._path = home / "keys.json"

    def keys(self) -> dict[str, Key]:
        """All keys by id, revoked ones too; none if there is no file."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise SecretError(f"key file '{self._path}' can be read by others: chmod 600 '{self._path}'")
                text = file.read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OptionError(f"cannot read the key file '{self._path}': {error.strerror}") from error
        with _damage(f"key file '{self._path}'"):
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise OptionError(f"expected format {FORMAT}, got {content['format']!r}")
            return {name: from_plain(name, plain) for name, plain in content["keys"].items()}

    def version(self) -> object:
        """What the file system says of the file; every change makes it longer, so coarse clocks do not matter."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OptionError(f"cannot read the key file '{self._path}': {error.strerror}") from error
        return found.st_ino, found.st_size, found.st_mode, found.st_ctime_ns

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        text, key = new_key(name, groups, admin, budget)
        with self._changing() as keys:
            keys[key.id] = key
        return text, key

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke the key of this id, or all keys of this name; those that were not revoked before are returned."""
        revoked_now(self.keys(), id_or_name)  # a key that does not exist makes no folder
        with self._changing() as keys:
            gone = revoked_now(keys, id_or_name)
            keys.update({key.id: key for key in gone})
        return gone

    def close(self) -> None:
        """Nothing to give back."""

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """All keys, to be changed and then written while nobody else can."""
        home = self._path.parent
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(home / ".keys.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                keys = self.keys()
                yield keys
                self._write(keys)
            finally:
                os.close(lock)
        except OSError as error:
            raise OptionError(f"cannot change the keys in '{home}': {error.strerror}") from error

    def _write(self, keys: Mapping[str, Key]) -> None:
        text = json.dumps({"format": FORMAT, "keys": {key.id: to_plain(key) for key in keys.values()}}, indent=1)
        write_atomically(self._path, text, private=True)  # synced: a revocation survives a power cut


class RedisKeys:
    """Keys in Redis or Valkey, beside the ledger that several replicas share."""

    def __init__(self, url: str, prefix: str = "queen") -> None:
        self._table = f"{{{prefix}:keys}}"  # what is in braces decides the slot of a cluster: one for both
        self._counter = f"{self._table}:version"
        self._url = url
        self._servers: RedisServers | None = RedisServers(url, PATIENCE)
        self._where = self._servers.name

    def keys(self) -> dict[str, Key]:
        """All keys by id, revoked ones too."""
        with self._client() as client:
            found = client.hgetall(self._table)
        with _damage(f"hash '{self._table}' in '{self._where}'"):
            return {name.decode(): from_plain(name.decode(), json.loads(text)) for name, text in found.items()}

    def version(self) -> object:
        """How often keys have changed."""
        with self._client() as client:
            found: bytes | None = client.get(self._counter)
        return found

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        text, key = new_key(name, groups, admin, budget)
        self._write([key])
        return text, key

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke the key of this id, or all keys of this name; those that were not revoked before are returned."""
        gone = revoked_now(self.keys(), id_or_name)
        if gone:
            self._write(gone)
        return gone

    def close(self) -> None:
        """Close the connections."""
        if self._servers is not None:
            self._servers.close()

    def _write(self, keys: Sequence[Key]) -> None:
        with self._client() as client, client.pipeline(transaction=True) as pipe:
            pipe.hset(self._table, mapping={key.id: json.dumps(to_plain(key)) for key in keys})
            pipe.incr(self._counter)
            pipe.execute()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """A connection to the server that holds the keys; after an error that is found out anew."""
        if self._servers is None:
            self._servers = RedisServers(self._url, PATIENCE)
        servers = self._servers
        try:
            with servers.named_errors():
                yield servers.client_of(self._table)
        except LedgerError:
            self._servers = None
            raise


@contextmanager
def _damage(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{what} is damaged ({error}): restore it, or delete it and make new keys") from error
