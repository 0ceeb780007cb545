"""The servers of a Redis ledger: one, or the primaries of a cluster, and what they must be set to."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from math import inf
from typing import Any
from urllib.parse import urlsplit

from queen.errors import LedgerError, OptionError

DURABLE = {
    "appendonly": ("yes", "nothing would survive a restart"),
    "appendfsync": ("always", "a crash would lose queries that were answered"),
    "maxmemory-policy": ("noeviction", "clients would be forgotten when memory is short"),
}
SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
WORKERS = 16  # shards that are asked at the same time
PATIENCE = 1.0  # seconds between two looks at where the slots of a cluster are


@dataclass(frozen=True)
class Script:
    """A Lua script in a file of this package."""

    name: str

    @cached_property
    def text(self) -> str:
        """What the server runs."""
        return resources.files("queen.ledger").joinpath(self.name).read_text(encoding="utf-8")

    @cached_property
    def sha(self) -> str:
        """What the server calls it."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class ScriptCall:
    """One run of a script: all keys are of one slot."""

    keys: tuple[str, ...]
    arguments: tuple[bytes | str | int, ...]


def library() -> Any:
    """redis-py, which is an extra."""
    try:
        import redis.backoff  # noqa: PLC0415
        import redis.cluster  # noqa: PLC0415
        import redis.exceptions  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ImportError as error:
        raise OptionError("a Redis ledger needs its client: pip install 'queen[redis]'") from error
    return redis


class Shards:
    """Sends scripts and commands to the server that holds their keys; nothing is ever sent twice on its own.

    A script that was cut off may have run, and then running it again would be another query. Connections are opened
    anew when they are found broken, so that a server that comes back is used again.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.name, address = _parse(url)
        self._redis = library()
        errors = self._redis.exceptions
        self._errors = (errors.RedisError, errors.RedisClusterException, OSError)
        retry = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0)
        options = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": retry, "protocol": 2}
        self._cluster: Any = None
        self._is_closed = False
        self._is_stale, self._looked = False, -inf  # the map of the cluster, and when it was last drawn
        self._pool: ThreadPoolExecutor | None = None
        with self.named_errors():
            self._one = self._redis.Redis.from_url(address, **options)
            if self._is_clustered():
                self._one.close()
                open_cluster = self._redis.cluster.RedisCluster.from_url
                self._cluster = open_cluster(address, require_full_coverage=False, **options)
                self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="shard")

    def _is_clustered(self) -> bool:
        try:
            return bool(self._one.info("cluster").get("cluster_enabled"))
        except self._redis.exceptions.ResponseError:  # INFO is forbidden
            return False

    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run a script, for all calls in one round trip a shard: replies, or what kept a call from being answered.

        Calls that certainly did not run (the script was unknown, or the slot has moved) are sent once more.
        """
        errors = self._redis.exceptions
        replies = self._send(script, calls)
        again = [i for i, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError | errors.MovedError)]
        if again:
            self._looked = -inf
            self._load(script)
            for i, reply in zip(again, self._send(script, [calls[i] for i in again]), strict=True):
                replies[i] = reply
        return replies

    def _load(self, script: Script) -> None:
        for client in self.clients():
            try:
                client.script_load(script.text)
            except self._errors:
                continue  # the calls to this shard will say why

    def _send(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        replies: list[Any] = [None] * len(calls)
        by_client: dict[int, tuple[Any, list[int]]] = {}
        for i, call in enumerate(calls):
            try:
                client = self.client_of(call.keys[0])
            except self._errors as error:
                replies[i] = error
                continue
            by_client.setdefault(id(client), (client, []))[1].append(i)

        def ask(client: Any, chosen: list[int]) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for i in chosen:
                pipeline.execute_command("EVALSHA", script.sha, len(calls[i].keys), *calls[i].keys, *calls[i].arguments)
            try:
                found: list[Any] = pipeline.execute(raise_on_error=False)
            except self._errors as error:
                found = [error] * len(chosen)
            return found

        for (_, chosen), found in zip(by_client.values(), self._each(ask, list(by_client.values())), strict=True):
            for i, reply in zip(chosen, found, strict=True):
                replies[i] = reply
        self._is_stale = self._is_stale or any(self.is_error(reply) for reply in replies)
        return replies

    def _each(self, ask: Callable[[Any, list[int]], list[Any]], asked: list[tuple[Any, list[int]]]) -> list[list[Any]]:
        """All shards at the same time, so that one that hangs holds up nobody twice."""
        if self._pool is None or len(asked) == 1:
            return [ask(*one) for one in asked]
        return list(self._pool.map(lambda one: ask(*one), asked))

    def is_error(self, reply: object) -> bool:
        """Whether a reply says that something went wrong."""
        return isinstance(reply, self._errors)

    def client_of(self, key: str) -> Any:
        """The connection to the server that holds a key."""
        self._refuse_if_closed()
        if self._cluster is None:
            return self._one
        self._refresh()
        return self._cluster.get_redis_connection(self._cluster.get_node_from_key(key))

    def clients(self) -> list[Any]:
        """A connection to every primary."""
        self._refuse_if_closed()
        if self._cluster is None:
            return [self._one]
        self._refresh()
        return [self._cluster.get_redis_connection(node) for node in self._cluster.get_primaries()]

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise LedgerError(f"ledger '{self.name}' is closed")

    def _refresh(self) -> None:
        """After an error slots may have moved; where nobody can be asked, the old map will do for a while."""
        if self._is_stale and time.monotonic() > self._looked + PATIENCE:
            self._looked = time.monotonic()
            try:
                self._cluster.nodes_manager.initialize()
                self._is_stale = False
            except self._errors:
                return

    def check(self, *, allow_volatile: bool, key: str) -> None:
        """Raise `LedgerError` if no server takes anything, or, unless allowed, if one would lose what it acknowledged.

        A single server is asked to write `key`; a cluster is of use as long as one of its shards answers.
        """
        clients, problems, errors = self.clients(), [], []
        for client in clients:
            try:
                problems.append("" if allow_volatile else self._problem_of(client))
                client.ping()
                if self._cluster is None:
                    client.set(key, 1)
            except self._errors as error:
                errors.append(error)
        if any(problems):
            raise LedgerError(
                f"ledger '{self.name}' is not durable: {'; '.join(dict.fromkeys(filter(None, problems)))}"
            )
        if len(errors) == len(clients):
            self._is_stale = True
            raise self.error(errors[0] if errors else "no primary is known")

    def _problem_of(self, client: Any) -> str:
        """What is wrong with a server's settings, and how to set them right."""
        try:
            found = {name: client.config_get(name).get(name) for name in DURABLE}
        except self._redis.exceptions.ResponseError as error:
            names = ", ".join(f"{name} {wanted}" for name, (wanted, _) in DURABLE.items())
            return f"its settings cannot be read ({error}); if you are sure of {names}, say allow_volatile"
        return "; ".join(
            f"{name} is '{found[name]}', so {why}: CONFIG SET {name} {wanted} (or '{name} {wanted}' in redis.conf)"
            for name, (wanted, why) in DURABLE.items()
            if found[name] != wanted
        )

    def error(self, error: object) -> LedgerError:
        """What went wrong, without the password of the address."""
        return LedgerError(
            f"ledger '{self.name}' failed: {error}. It is not certain what was recorded, so nothing may be answered"
        )

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Whatever the client raises becomes a `LedgerError`."""
        try:
            yield
        except self._errors as error:
            raise self.error(error) from error

    def close(self) -> None:
        """Give back connections and threads."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        (self._one if self._cluster is None else self._cluster).close()


def _parse(url: str) -> tuple[str, str]:
    """An address as it may be shown, and as the client takes it."""
    parts = urlsplit(url)
    scheme = SCHEMES.get(parts.scheme, parts.scheme)
    if scheme not in ("redis", "rediss"):
        raise OptionError(f"expected redis://HOST:PORT/NUMBER, rediss:// or valkey://, got '{parts.scheme}://...'")
    try:
        place = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError as error:
        raise OptionError(f"expected redis://HOST:PORT/NUMBER: {error}") from error
    return f"{parts.scheme}://{place}{parts.path}", parts._replace(scheme=scheme).geturl()
