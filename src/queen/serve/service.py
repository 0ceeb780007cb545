"""Everything that one server process holds, put together from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from queen.errors import CalibrationError, LedgerError, OptionError
from queen.guard import Guard, load
from queen.ledger import Event, Standing, open_ledger
from queen.serve.access.auth import Authenticator, UnknownKeyError
from queen.serve.access.budgets import GrantedKeys
from queen.serve.access.key_store import KeyStore, open_keys
from queen.serve.batcher import Batcher, BatchOutcome
from queen.serve.querylog.writer import QueryLog
from queen.serve.release import Ticks
from queen.serve.settings import Settings
from queen.serve.telemetry.log import access, log
from queen.serve.telemetry.metrics import Metrics
from queen.serve.telemetry.series import Series
from queen.serve.telemetry.webhook import Webhook
from queen.serve.types import Caller, Query, ServeError, describe
from queen.serve.unprotected import Unprotected

if TYPE_CHECKING:
    from starlette.requests import Request

Result = TypeVar("Result")
CHECK_EVERY = 0.5  # seconds between looks at the keys, and at a ledger that failed
MAX_PARSES = 16  # large requests that may wait for one of four threads
LOG_TIMEOUT = 1.5  # seconds that recorded queries have to reach the disk at the end
LEDGER_TIMEOUT = 1.0  # seconds to wait for a file that another process has locked, or for an answer of Redis


class Service:
    """A guard with keys, a queue, counters, and a way to tell operators."""

    def __init__(self, settings: Settings, guard: Guard, keys: KeyStore) -> None:
        self.settings, self.guard, self.keys = settings, guard, keys
        self._granted = GrantedKeys(keys, guard.ledger)
        self.spec = describe(guard.bundle, settings.model_name)
        self.metrics, self.series = Metrics(model=self.spec.name, policy=guard.policy.name), Series()
        self.auth = Authenticator(
            self._granted,
            anonymous=settings.anonymous,
            trusted_proxies=settings.trusted_proxy,
            net_groups="net" in guard.bundle.sentinel.groups,
        )
        self.started = time.time()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="queen-blocking")
        self._key_pool = ThreadPoolExecutor(1, thread_name_prefix="queen-keys")  # never behind anybody's large request
        self._parses = 0  # large requests in parsing, or waiting for it
        self._draining = False
        self._ledger_error: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None
        self._ticks = Ticks(settings.release_every)
        self._webhook, self._log = _webhook(settings, self.metrics), _query_log(settings, self.metrics)
        self.batcher = Batcher(
            guard,
            max_batch=settings.max_batch,
            max_queue=settings.max_queue,
            max_wait=settings.max_wait,
            uniform=settings.uniform,
            on_batch=self._after_batch,
            on_ledger=self._after_ledger,
        )

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Load the bundle, open ledger and keys."""
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if settings.ledger is None:
            settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        ledger = open_ledger(settings.ledger_url, **_ledger_options(settings))
        try:
            ledger.check()  # a file that may not be written can still be opened
            guard = load_guard(settings, ledger=ledger)
            service = cls(settings, guard, open_keys(settings.home, settings.ledger_url))
        except BaseException:
            ledger.close()
            raise
        gc.collect()
        gc.freeze()  # the model's objects never die: looking through them would stop every request for a while
        return service

    @property
    def version(self) -> str:
        """Of this program."""
        try:
            return package_version("queen")
        except PackageNotFoundError:
            return "unknown"

    @property
    def ready(self) -> bool:
        """Whether requests can be answered: not shutting down, the ledger records, and keys can be read."""
        works = self._ledger_error is None and self.auth.failure is None
        return works and not self._draining and self.batcher.alive

    async def start(self) -> None:
        """Begin to answer."""
        await self._look_at_keys()
        self.batcher.start()
        if self._webhook:
            await self._webhook.start()
        self._ticks.start()
        self._tasks = [asyncio.create_task(self._watch_keys()), asyncio.create_task(self._watch_ledger())]
        self.metrics.set_ready(self.ready)

    def drain(self) -> None:
        """Say that this server is about to go, so that nobody sends it more."""
        self._draining = True
        self.metrics.set_ready(False)

    async def stop(self) -> None:
        """Answer what was accepted, then give everything back."""
        self.drain()
        self._ticks.stop()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(self.batcher.close, self.settings.shutdown_timeout)
        if self._webhook:
            await self._webhook.stop()
        if self._log:
            await asyncio.to_thread(self._log.close, LOG_TIMEOUT)
        for pool in (self._pool, self._key_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self.guard.ledger.close()
        self.keys.close()

    async def blocking(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run what may block in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def parse(self, read: Callable[[], Query]) -> Query:
        """Parse a large request in a thread, a few at a time; beyond, nobody is made to wait for them."""
        if self._parses >= MAX_PARSES:
            raise ServeError(503, "too many large requests at once; try again", retry_after=1)
        self._parses += 1
        try:
            return await self.blocking(read)
        finally:
            self._parses -= 1

    async def infer(self, query: Query, caller: Caller) -> NDArray[np.float32]:
        """Probabilities (n, K) for one request; raises `ServeError`."""
        try:
            answers = await self.batcher.submit(query, caller)
        except ServeError:
            await self._ticks.wait()
            raise
        except OptionError as error:  # a group without limits: never answer as if it had none
            log("group without limits", level="error", client=caller.client, groups=list(caller.groups))
            raise ServeError(503, "the server has no limits for a group of this key; ask the operator") from error
        await self._ticks.wait()
        return answers

    async def caller(self, authorization: str | None, peer: str | None, forwarded: str | None) -> Caller:
        """Who asks; a key made a moment ago is looked up once more."""
        try:
            found = self.auth.caller(authorization, peer, forwarded)
        except UnknownKeyError as error:
            if not error.retry and (self._looking is None or self._looking.done()):
                raise
            await self._look_at_keys()
            found = self.auth.caller(authorization, peer, forwarded)
        if found.client in self._granted.pending:
            raise ServeError(503, "the budget of this key is not in force yet; try again", retry_after=1)
        return found

    async def admin(self, request: Request) -> Caller:
        """An operator, or `ServeError` 401 or 403."""
        where = addresses(request.scope)
        await self.caller(request.headers.get("authorization"), *where)  # which also sees a key made just now
        return self.auth.admin(request.headers.get("authorization"), *where)

    def count(
        self,
        protocol: Literal["rest", "grpc"],
        status: int,
        seconds: float,
        *,
        is_query: bool,
        query: Query | None = None,
        caller: Caller | None = None,
    ) -> None:
        """Count one finished request; `query` and `caller` are for the access log, as far as they are known."""
        self.metrics.observe_request(protocol, status, seconds)
        if is_query:
            self.series.request(seconds, error=status >= 400)
            self.metrics.set_queue(self.batcher.waiting)
        if self.settings.access_log:
            name, rows = (query.id, query.rows) if query else ("", 0)
            access(
                id=name, protocol=protocol, status=status, rows=rows, seconds=seconds, key=caller.key if caller else ""
            )

    def _after_batch(self, done: BatchOutcome) -> None:
        """Count a batch whose answers have left."""
        letters, alarmed, refused = done.judgement.letters, int(done.reply.alarmed.sum()), int(done.reply.refused.sum())
        self.metrics.observe_batch(
            len(letters), done.model_seconds, done.ledger_seconds, letters, alarmed=alarmed, refused=refused
        )
        self.series.batch(len(letters), Counter(letters), alarmed=alarmed, refused=refused)
        if self._log:
            now = time.time()
            for job in done.jobs:
                self._log.write(job.caller.client, job.caller.groups, job.query.inputs, now)
        for standing, client in done.judgement.alarms:
            self._alarm(standing, client)

    def _alarm(self, of: Standing, client: str) -> None:
        self.metrics.alarm("group" if of.group else "client")
        log("alarm", level="warning", name=of.name, group=of.group, client=client, wealth=of.wealth, queries=of.queries)
        if self._webhook:
            at = time.time()
            event = Event(0, "alarm", of.name, of.group, client, of.wealth, of.queries, of.coverage, "", at)
            self._webhook.submit(event)

    def _after_ledger(self, error: LedgerError | None) -> None:
        """Note whether the ledger works; runs in its thread."""
        before, self._ledger_error = self._ledger_error, None if error is None else str(error)
        if error is not None:
            self.metrics.ledger_error()
        if (before is None) != (error is None):
            self.metrics.set_ready(self.ready)
            if error is None:
                log("ledger works again")
            else:
                log("ledger failed", level="error", error=str(error))

    async def _watch_ledger(self) -> None:
        """See a failed ledger recover even when nobody asks."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            if self._ledger_error is not None:
                try:
                    await asyncio.get_running_loop().run_in_executor(self._key_pool, self.guard.ledger.check)
                except LedgerError:
                    continue
                self._after_ledger(None)

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            try:
                await self._look_at_keys()
            except Exception as error:  # whatever it was, the next look may succeed
                log("looking at keys failed", level="error", error=str(error))

    async def _look_at_keys(self) -> None:
        """Take over new and revoked keys; whoever wants to while somebody does waits for that one."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        def look() -> None:
            self.auth.refresh_once()
            if self._granted.pending:
                self._granted.settle()

        before = self.ready
        await asyncio.get_running_loop().run_in_executor(self._key_pool, look)
        if self.ready != before:
            self.metrics.set_ready(self.ready)


def load_guard(settings: Settings, **where: Any) -> Guard:
    """The bundle's guard under the settings' options."""
    names = ("policy", "observe", "alpha", "on_alarm", "on_spent")
    changes = {name: value for name in names if (value := getattr(settings, name)) is not None}
    unprotected = changes.get("policy") == "none"
    if unprotected:
        del changes["policy"]
    try:
        guard = load(settings.bundle, settings.model, device=settings.device, **where, **changes)
    except CalibrationError as error:
        raise CalibrationError(f"{error}; or serve another policy: --policy paper|strict") from error
    limits = guard.bundle.limits
    own = {
        name: value
        for name in ("radius", "threshold", "extra_answers")
        if (value := getattr(settings, name)) is not None
    }
    if own:
        limits = replace(limits, **own)
        guard = guard.with_options(limits=limits)
    if settings.groups:
        guard = guard.with_options(groups={kind: group.over(limits) for kind, group in settings.groups.items()})
    if unprotected:
        return Unprotected(guard.bundle, ledger=guard.ledger)
    return guard


def addresses(scope: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The socket's peer of an ASGI request, and all it says about proxies on the way, in order."""
    told = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return (scope["client"][0] if scope["client"] else None), (", ".join(told) or None)


def _webhook(settings: Settings, metrics: Metrics) -> Webhook | None:
    if settings.webhook is None:
        return None
    return Webhook(settings.webhook, secret=settings.webhook_secret, metrics=metrics)


def _query_log(settings: Settings, metrics: Metrics) -> QueryLog | None:
    if settings.record is None:
        return None
    return QueryLog(settings.record, max_bytes=settings.record_bytes, max_days=settings.record_days, metrics=metrics)


def _ledger_options(settings: Settings) -> dict[str, Any]:
    if settings.ledger_url == "memory://":
        return {}
    volatile = {"allow_volatile": settings.allow_volatile} if settings.shares_ledger else {}
    return {"timeout": LEDGER_TIMEOUT, **volatile}


def process_name() -> str:
    """Which process this is, for logs of several."""
    return f"{os.uname().nodename}:{os.getpid()}"
