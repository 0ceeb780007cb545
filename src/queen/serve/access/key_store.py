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
from queen.errors import KeyStoreError, LedgerError, OptionError, SecretError
from queen.ledger.redis.client import RedisServers
from queen.ledger.words import Budget
from queen.serve.access.key import Key, from_plain, mark_revoked, new_key, to_plain

FORMAT = 1
REDIS = ("redis", "rediss", "valkey", "valkeys")  # schemes of ledgers that store the keys too
REDIS_TIMEOUT = 1.0  # seconds


class KeySource(Protocol):
    """Where keys can be read. Every call may block."""

    def keys(self) -> dict[str, Key]:
        """All keys by id, revoked ones too."""
        ...

    def version(self) -> object:
        """Something cheap that changes whenever any key changes."""
        ...


class KeyStore(KeySource, Protocol):
    """Where keys are kept. Every call may block."""

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        ...

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke the key of this id, or all keys of this name; those that were not revoked before are returned."""
        ...

    def close(self) -> None:
        """Close the connections, if there are any."""
        ...


def open_keys(home: Path, ledger_url: str) -> KeyStore:
    """The keys that belong to a ledger: in Redis if it is there, else in the folder `home`."""
    return RedisKeys(ledger_url) if urlsplit(ledger_url).scheme in REDIS else FileKeys(home)


class FileKeys:
    """Keys in `home`/keys.json, which only its owner may read; several processes may change it at the same time."""

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
        with _report_damage(f"key file '{self._path}'"):
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise OptionError(f"expected format {FORMAT}, got {content['format']!r}")
            return {name: from_plain(name, plain) for name, plain in content["keys"].items()}

    def version(self) -> object:
        """The file's number, size, mode and time; every change makes it longer, so coarse clocks do not matter."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OptionError(f"cannot read the key file '{self._path}': {error.strerror}") from error
        return stat.st_ino, stat.st_size, stat.st_mode, stat.st_ctime_ns

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        text, key = new_key(name, groups, admin, budget)
        with self._edit() as keys:
            keys[key.id] = key
        return text, key

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke the key of this id, or all keys of this name; those that were not revoked before are returned."""
        mark_revoked(self.keys(), id_or_name)  # fails before a folder is made, if there is no such key
        try:
            with self._edit() as keys:
                revoked = mark_revoked(keys, id_or_name)
                keys.update({key.id: key for key in revoked})
        except KeyStoreError as error:
            raise KeyStoreError(
                f"{error}. NOTHING IS REVOKED: make room, or ask a running server, which refuses the key at once and "
                "stores that when it can: queen revoke NAME --server URL"
            ) from error
        return revoked

    def close(self) -> None:
        """Nothing to close."""

    @contextmanager
    def _edit(self) -> Iterator[dict[str, Key]]:
        """All keys, to be changed in the `with` block and written at its end, while other processes must wait."""
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
            raise KeyStoreError(f"cannot change the keys in '{home}', so nothing was: {error.strerror}") from error

    def _write(self, keys: Mapping[str, Key]) -> None:
        text = json.dumps({"format": FORMAT, "keys": {key.id: to_plain(key) for key in keys.values()}}, indent=1)
        write_atomically(self._path, text, private=True)  # synced: a revocation survives a power cut


class RedisKeys:
    """Keys in Redis or Valkey, beside the ledger that several replicas share."""

    def __init__(self, url: str, prefix: str = "queen") -> None:
        self._table = f"{{{prefix}:keys}}"  # the part in braces decides the slot in a cluster: the same for both
        self._counter = f"{self._table}:version"
        self._url = url
        self._servers: RedisServers | None = RedisServers(url, REDIS_TIMEOUT)
        self._where = self._servers.name

    def keys(self) -> dict[str, Key]:
        """All keys by id, revoked ones too."""
        with self._client() as client:
            table = client.hgetall(self._table)
        with _report_damage(f"hash '{self._table}' in '{self._where}'"):
            return {name.decode(): from_plain(name.decode(), json.loads(text)) for name, text in table.items()}

    def version(self) -> object:
        """How often keys have changed."""
        with self._client() as client:
            version: bytes | None = client.get(self._counter)
        return version

    def add(
        self, name: str, groups: Sequence[str] = (), admin: bool = False, budget: Budget | None = None
    ) -> tuple[str, Key]:
        """Make a key; its text is returned here and kept nowhere."""
        text, key = new_key(name, groups, admin, budget)
        self._write([key])
        return text, key

    def revoke(self, id_or_name: str) -> list[Key]:
        """Revoke the key of this id, or all keys of this name; those that were not revoked before are returned."""
        revoked = mark_revoked(self.keys(), id_or_name)
        if revoked:
            self._write(revoked)
        return revoked

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
        """A connection to the Redis server that has the keys; after an error, that server is looked up again."""
        if self._servers is None:
            self._servers = RedisServers(self._url, REDIS_TIMEOUT)
        servers = self._servers
        try:
            with servers.named_errors():
                yield servers.client_of(self._table)
        except LedgerError:
            self._servers = None
            raise


@contextmanager
def _report_damage(source: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{source} is damaged ({error}): restore it, or delete it and make new keys") from error
