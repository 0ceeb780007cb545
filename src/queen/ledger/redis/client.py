"""The servers of a Redis ledger: one, or the primaries of a cluster, and what they must be set to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from queen.errors import LedgerError, LostStateError, OptionError
from queen.extras import install
from queen.ledger.redis.durability import hides_settings, volatile_settings
from queen.ledger.redis.epochs import RedisEpochs
from queen.ledger.redis.script import Script, ScriptCall, parse_address
from queen.ledger.witness import Witness

WORKERS = 16  # servers of a cluster that are asked at the same time
PAGE = 1000  # keys looked at per SCAN
REFRESH_PAUSE = 1.0  # least seconds between two readings of a cluster's map of slots


def _import_redis() -> Any:
    """redis-py, which is installed with the extra `redis`."""
    try:
        import redis.backoff  # noqa: PLC0415
        import redis.cluster  # noqa: PLC0415
        import redis.crc  # noqa: PLC0415
        import redis.exceptions  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(f"a Redis ledger needs its client: {install('redis')}") from error
    return redis


class RedisServers:
    """Sends scripts and commands to the server that holds their keys; nothing is ever resent automatically.

    A script whose reply was lost may have run, and then running it again would count another query. Broken connections
    are opened anew, so that a server that comes back is used again. With a witness, what a server holds under `prefix`
    is compared on every new connection, and every batch of scripts raises its epoch.
    """

    def __init__(self, url: str, timeout: float, *, prefix: str = "", witness: Witness | None = None) -> None:
        self.name, address = parse_address(url)
        self._redis = _import_redis()
        errors = self._redis.exceptions
        self._errors = (errors.RedisError, errors.RedisClusterException, OSError, LedgerError)
        retry = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0)
        options = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": retry, "protocol": 2}
        self._cluster: Any = None
        self._is_closed = False
        self._is_stale, self._refreshed = False, -inf  # whether the map of slots may be wrong, and when it was read
        self._pool: ThreadPoolExecutor | None = None
        self.epochs = RedisEpochs(self._redis, prefix, witness) if witness else None
        self._counter_of: dict[int, str] = {}  # by connection, the counter that is raised there
        with self.named_errors():
            self._one = self._redis.Redis.from_url(address, redis_connect_func=self._greet, **options)
            if self._is_clustered():
                self._one.close()
                open_cluster = self._redis.cluster.RedisCluster.from_url
                greet = self.epochs and self.epochs.greet  # after what redis-py itself does on a connection
                options |= {"require_full_coverage": False, "redis_connect_func": greet}
                self._cluster = open_cluster(address, **options)
                self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="redis")

    def _greet(self, connection: Any) -> None:
        """Set up a connection to a single server as redis-py would, and compare what is there."""
        connection.on_connect()
        if self.epochs:
            self.epochs.greet(connection)

    def _is_clustered(self) -> bool:
        try:
            return bool(self._one.info("cluster").get("cluster_enabled"))
        except self._redis.exceptions.ResponseError:  # INFO is forbidden
            return False

    def run(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run a script for all calls, in one round trip per server: for each call its reply, or the error it met.

        Calls that certainly did not run (the script was unknown, or the slot has moved) are sent once more.
        """
        errors = self._redis.exceptions
        replies = self._send(script, calls)
        again = [i for i, reply in enumerate(replies) if isinstance(reply, errors.NoScriptError | errors.MovedError)]
        if again:
            self._refreshed = -inf
            self._load(script)
            for i, reply in zip(again, self._send(script, [calls[i] for i in again]), strict=True):
                replies[i] = reply
        return replies

    def _load(self, script: Script) -> None:
        for client in self.clients():
            try:
                client.script_load(script.text)
            except self._errors:
                continue  # the calls to this server will meet the same error

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
            part = self._counter_at(client)
            before = self.epochs.add_rise(pipeline, part) if self.epochs and part else 0
            try:
                answers: list[Any] = pipeline.execute(raise_on_error=False)
                if self.epochs and part and not self.epochs.check_rise(part, before, answers.pop()):
                    self._is_stale = True
            except self._errors as error:
                answers = [error] * len(chosen)
            return answers

        for (_, chosen), answers in zip(by_client.values(), self._each(ask, list(by_client.values())), strict=True):
            for i, reply in zip(chosen, answers, strict=True):
                replies[i] = reply
        self._is_stale = self._is_stale or any(self.is_error(reply) for reply in replies)
        return replies

    def _each(self, ask: Callable[[Any, list[int]], list[Any]], asked: list[tuple[Any, list[int]]]) -> list[list[Any]]:
        """Ask all servers at the same time, so that one that hangs delays the others only once."""
        if self._pool is None or len(asked) == 1:
            return [ask(*one) for one in asked]
        return list(self._pool.map(lambda one: ask(*one), asked))

    def _counter_at(self, client: Any) -> str | None:
        """The counter to raise on a server: the first that lies there; None where there is none."""
        if self.epochs is None:
            return None
        if self._cluster is None:
            return self.epochs.parts[0]
        counter_of = self._counter_of
        if not counter_of:
            counter_of = {}  # for other threads to see as a whole or not at all
            for part in reversed(self.epochs.parts):
                with suppress(*self._errors):
                    counter_of[id(self.client_of(self.epochs.key(part)))] = part
            self._counter_of = counter_of
        return counter_of.get(id(client))

    def is_error(self, reply: object) -> bool:
        """Whether a reply is an error."""
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

    @property
    def is_cluster(self) -> bool:
        """Whether the keys are spread over several servers."""
        return self._cluster is not None

    def scan(self, pattern: str) -> Iterator[tuple[Any, list[bytes]]]:
        """All keys that match, in pages, each with the connection to its server; none twice from one server."""
        for client in self.clients():
            visited: set[bytes] = set()
            cursor = None
            while cursor != 0:
                cursor, keys = client.scan(cursor or 0, match=pattern, count=PAGE)
                fresh = [key for key in dict.fromkeys(keys) if key not in visited]
                visited.update(fresh)
                yield client, fresh

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise LedgerError(f"ledger '{self.name}' is closed")

    def _refresh(self) -> None:
        """Read the map of slots again after an error; if no server can be asked, use the old one for a while."""
        if self._is_stale and time.monotonic() > self._refreshed + REFRESH_PAUSE:
            self._refreshed = time.monotonic()
            try:
                self._cluster.nodes_manager.initialize()
                self._is_stale, self._counter_of = False, {}
            except self._errors:
                return

    def check(self, *, key: str) -> None:
        """Raise `LedgerError` if nothing can be written.

        A single server is asked to write `key`; a cluster is of use as long as one of its servers answers.
        """
        clients, errors = self.clients(), []
        for client in clients:
            try:
                client.ping()
                if self._cluster is None:
                    client.set(key, 1)
            except self._errors as error:
                errors.append(error)
        self._refuse_silence(clients, errors)

    def _refuse_silence(self, clients: Sequence[Any], errors: Sequence[Exception]) -> None:
        """Raise `LedgerError` if no server answers."""
        if len(errors) == len(clients):
            self._is_stale = True
            raise self.error(errors[0] if errors else "no primary is known")

    def verify(self, *, allow_volatile: bool) -> None:
        """Raise `LostStateError` if a server has lost what it held or, unless allowed, could lose it; writes nothing.

        `LedgerError` if no server answers.
        """
        clients, problems, errors = self.clients(), list[str](), list[Exception]()
        if self.epochs:
            self.epochs.verify(clients, self._errors, is_cluster=self.is_cluster)
        if allow_volatile:
            return
        for client in clients:
            try:
                problems.append(volatile_settings(client, self._redis.exceptions.ResponseError))
            except self._errors as error:
                errors.append(error)
        if any(problems):
            raise LostStateError(
                f"ledger '{self.name}' is not durable: {'; '.join(dict.fromkeys(filter(None, problems)))}"
            )
        self._refuse_silence(clients, errors)

    def hide_settings(self) -> bool:
        """Whether nobody can know how some server is set; one that does not answer is left out."""
        for client in self.clients():
            with suppress(*self._errors):
                if hides_settings(client, self._redis.exceptions.ResponseError):
                    return True
        return False

    def error(self, error: object) -> LedgerError:
        """The error for a client of the ledger, without the password in the address; what was lost comes first."""
        if self.epochs and self.epochs.witness.problem:
            return self.epochs.witness.problem
        if isinstance(error, LedgerError):
            return error
        return LedgerError(
            f"ledger '{self.name}' failed: {error}. It is not certain what was recorded, so nothing may be answered"
        )

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Whatever redis-py raises becomes a `LedgerError`."""
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
