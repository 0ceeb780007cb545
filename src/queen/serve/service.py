"""The parts of one server process, put together from its settings, started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from queen import __version__
from queen.errors import OptionError, SecretError
from queen.guard import Guard
from queen.ledger import Ledger, open_ledger
from queen.ledger.open import witness_in
from queen.ledger.words import Notice
from queen.secret import read_private, secret_path
from queen.serve.access.auth import Authenticator
from queen.serve.access.budgets import KeysWithBudgets
from queen.serve.access.key_store import KeyStore, open_keys
from queen.serve.access.key_watcher import KeyWatcher
from queen.serve.access.proxies import UnnamedProxies
from queen.serve.access.revocations import KeysWithRevocations
from queen.serve.batcher import Batcher, BatchOutcome
from queen.serve.ledger_health import LedgerHealth
from queen.serve.limits.memory import MemoryAccount
from queen.serve.limits.refusal_log import RefusalLog
from queen.serve.limits.trim import Trimmer
from queen.serve.load import load_guard
from queen.serve.neighbours import refuse_neighbours
from queen.serve.protocol.headers import addresses
from queen.serve.protocol.pause import lower_priority
from queen.serve.querylog.writer import QueryLog
from queen.serve.queue.admission import Admission
from queen.serve.release.hold import Hold
from queen.serve.settings import Settings
from queen.serve.telemetry.counting import RequestCounter
from queen.serve.telemetry.log import log
from queen.serve.telemetry.metrics import Metrics
from queen.serve.telemetry.series import Series
from queen.serve.telemetry.webhook import Webhook
from queen.serve.types import Caller, Query, ServeError, describe
from queen.serve.upstream.health import make_health

if TYPE_CHECKING:
    from starlette.requests import Request

Result = TypeVar("Result")
LOG_TIMEOUT = 1.5  # seconds that recorded queries have to reach the disk at the end
LEDGER_TIMEOUT = 1.0  # seconds to wait for a file that another process has locked, or for an answer of Redis


class Service:
    """A guard with keys, a queue, counters, and a way to tell operators."""

    version = __version__

    def __init__(self, settings: Settings, guard: Guard, keys: KeyStore) -> None:
        guard, self._advice = refuse_neighbours(guard, anonymous=settings.anonymous)
        for sentence in self._advice:
            log("neighbours", level="warning", why=sentence)
        self.settings, self.guard = settings, guard
        self.keys: KeyStore = KeysWithRevocations(keys)
        self.spec = describe(guard.bundle, settings.model_name, digits=guard.digits)
        self.metrics, self.series = Metrics(model=self.spec.name, policy=guard.policy.name), Series()
        keys_with_budgets = KeysWithBudgets(self.keys, guard.ledger)
        self.auth = Authenticator(
            keys_with_budgets,
            anonymous=settings.anonymous,
            trusted_proxies=settings.trusted_proxy,
            net_groups="net" in guard.bundle.sentinel.groups,
            unnamed_proxies=UnnamedProxies(self.metrics.unnamed_proxy),
        )
        self.started = time.time()
        self._pool = ThreadPoolExecutor(4, "queen-blocking", lower_priority)
        # keys are never behind a large request, nor behind a ledger whose disk hangs
        watched = ("key", "ledger", "upstream")
        self._key_pool, self._ledger_pool, self._upstream_pool = (
            ThreadPoolExecutor(1, f"queen-{of}-watch") for of in watched
        )
        self.key_watcher = KeyWatcher(self.auth, keys_with_budgets, self._key_pool, self._show_ready)
        self.ledger_health = LedgerHealth(guard.ledger, self.metrics, self._ledger_pool, self._show_ready, guard.bind)
        self.upstream_health = make_health(guard, settings, self.metrics, self._upstream_pool, self._show_ready)
        refusals = RefusalLog("requests refused")
        self.request_memory = MemoryAccount(  # what requests take from their heads until their answers have left
            settings.request_bytes,
            settings.client_bytes,
            spare=settings.client_bytes // 6,
            on_refusal=partial(refusals.note, "too many bytes in flight"),
        )
        self.parse_memory = MemoryAccount(settings.parse_bytes, settings.parse_bytes)  # what parsing and writing take
        accounts = (self.request_memory, self.parse_memory)
        self._trimmer = Trimmer(lambda: sum(one.given_back for one in accounts), settings.client_bytes // 4)
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self.hold = Hold(settings, guard)
        self._webhook = _open_webhook(settings, guard.ledger, self.metrics)
        self._query_log = _open_query_log(settings, self.metrics)
        self.batcher = Batcher(
            guard,
            max_batch=settings.max_batch,
            max_turn=settings.max_turn,
            max_queue=settings.max_queue,
            max_client_queue=settings.max_client_queue,
            max_wait=settings.max_wait,
            uniform=settings.uniform,
            on_batch=self._after_batch,
            on_ledger=self.ledger_health.report,
        )
        self.admission = Admission(
            self.batcher.queue,
            self._pool,
            self.parse_memory,
            on_refusal=partial(refusals.note, "too many large requests"),
        )
        self.metrics.watch_queue(lambda: self.batcher.waiting)
        self.counter = RequestCounter(self.metrics, self.series, access_log=settings.access_log)

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Load the bundle, open ledger and keys."""
        if settings.threads:
            torch.set_num_threads(settings.threads)
        ledger = open_ledger(settings.ledger_url, **_ledger_options(settings))
        try:
            ledger.check()  # a read-only file can be opened too
            secret = secret_path(settings.bundle)
            had_secret = secret.exists()
            guard = load_guard(settings, ledger=ledger, new_secret=settings.new_secret)
            if not had_secret and secret.exists():
                log("secret made", level="warning", file=secret, why="there was none; copy it wherever the bundle goes")
            if guard.bind():
                log("ledger bound", to=str(guard.binding))
            service = cls(settings, guard, open_keys(settings.home, settings.ledger_url))
        except BaseException:
            ledger.close()
            raise
        gc.collect()
        gc.freeze()  # the model stays: collecting garbage there would stop every request for a while
        return service

    @property
    def advice(self) -> list[str]:
        """What operators should know, a sentence each."""
        upstream = self.upstream_health.advice if self.upstream_health else []
        return [*self._advice, *self.auth.unnamed_proxies.advice, *upstream]

    @property
    def ready(self) -> bool:
        """Whether requests can be answered: not shutting down, and ledger, keys and upstream (if any) work."""
        parts = (self.ledger_health, self.key_watcher, self.upstream_health)
        return all(part is None or part.works for part in parts) and not self._draining and self.batcher.alive

    async def start(self) -> None:
        """Begin to answer requests."""
        await self.key_watcher.refresh()
        self.batcher.start()
        if self._webhook:
            await self._webhook.start()
        await self.hold.start()
        watchers = (self.key_watcher, self.ledger_health, self._trimmer, self.upstream_health)
        self._tasks = [asyncio.create_task(one.watch()) for one in watchers if one is not None]
        self._show_ready()

    def drain(self) -> None:
        """Say that this server is about to stop, so that load balancers send it nothing more; no answer waits now."""
        self._draining = True
        self.hold.stop()
        self.metrics.set_ready(False)

    async def stop(self) -> None:
        """Answer the requests that were accepted, then release everything."""
        self.drain()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(self.batcher.close, self.settings.shutdown_timeout)
        if self._webhook:
            await self._webhook.stop()
        if self._query_log:
            await asyncio.to_thread(self._query_log.close, LOG_TIMEOUT)
        for pool in (self._pool, self._key_pool, self._ledger_pool, self._upstream_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self.guard.ledger.close()
        self.keys.close()

    async def blocking(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run a function that may block, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def infer(self, query: Query, caller: Caller) -> NDArray[np.float32]:
        """Probabilities (n, K) for one request, once they may leave, NaN in rows refused where that may be.

        Raises `ServeError`.
        """
        arrived = time.monotonic()
        try:
            answers = await self.batcher.submit(query, caller)
        except ServeError:
            await self.hold.wait(arrived, query.rows)
            raise
        except OptionError as error:  # a group that has no limits must not be answered as if it were unlimited
            log("group without limits", level="error", client=caller.client, groups=list(caller.groups))
            raise ServeError(503, "the server has no limits for a group of this key; ask the operator") from error
        if self.hold.is_on:
            await self.hold.wait(arrived, query.rows)
        return answers

    async def admin(self, request: Request) -> Caller:
        """An operator, or `ServeError` 401 or 403."""
        return await self.key_watcher.admin(request.headers.get("authorization"), *addresses(request.scope))

    def _show_ready(self) -> None:
        self.metrics.set_ready(self.ready)

    def _after_batch(self, outcome: BatchOutcome) -> None:
        """Count and record a batch whose answers have left, and report what it brought about."""
        self.counter.batch(
            outcome.judgement,
            outcome.reply,
            model_seconds=outcome.model_seconds,
            ledger_seconds=outcome.ledger_seconds,
        )
        self.hold.note_batch(len(outcome.judgement.letters), outcome.model_seconds + outcome.ledger_seconds)
        if self._query_log:
            now = time.time()
            for request in outcome.requests:
                self._query_log.write(request.caller.client, request.caller.groups, request.query.inputs, now)
        for notice in outcome.judgement.notices:
            self._report(notice)
        if self._webhook and outcome.judgement.notices:
            self._webhook.wake()

    def _report(self, notice: Notice) -> None:
        """Count and log that a client or a group stands accused, or that a budget of it is low or spent."""
        of = notice.standing
        self.metrics.notice(notice.what, "group" if of.group else "client")
        about = {"wealth": of.wealth} if notice.what == "alarm" else {"extra_answers": of.extra_answers}
        log(
            notice.what,
            level="warning",
            name=of.name,
            group=of.group,
            client=notice.client,
            queries=of.queries,
            **about,
        )


def _open_webhook(settings: Settings, ledger: Ledger, metrics: Metrics) -> Webhook | None:
    if settings.webhook is None:
        return None
    secret, file = settings.webhook_secret, settings.webhook_secret_file
    if file is not None and not (secret := read_private(file)):
        raise SecretError(f"secret file '{file}' is empty")
    return Webhook(settings.webhook, ledger, secret=secret, metrics=metrics)


def _open_query_log(settings: Settings, metrics: Metrics) -> QueryLog | None:
    if settings.record is None:
        return None
    return QueryLog(settings.record, max_bytes=settings.record_bytes, max_days=settings.record_days, metrics=metrics)


def _ledger_options(settings: Settings) -> dict[str, Any]:
    if settings.ledger_url == "memory://":
        return {}
    volatile = {"allow_volatile": settings.allow_volatile} if settings.shares_ledger else {}
    return {"timeout": LEDGER_TIMEOUT, "witness": _witness(settings), **volatile}


def _witness(settings: Settings) -> Path | None:
    """The file that remembers the ledger; None, and a warning, where it could not be written."""
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(settings.home, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        why = f"{error.strerror}: a ledger that loses records while the server is stopped will not be noticed"
        log("no witness", level="warning", home=str(settings.home), why=why)
        return None
    return witness_in(settings.home, settings.ledger_url)


def process_name() -> str:
    """Host and process number, for the logs of several processes."""
    return f"{os.uname().nodename}:{os.getpid()}"
