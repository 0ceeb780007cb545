"""Requests of all clients become batches of the model: greedy, in order of arrival, at the pace of the ledger.

One thread runs the model on whatever waits and never sleeps for more; a second one records and answers, so that the
model works on the next batch while the ledger commits the last one. A slow ledger holds the model back, batches grow,
and one commit carries more requests: that is the group commit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from queen.batch import MeasuredBatch
from queen.core import inputs
from queen.errors import LedgerError, QueenError
from queen.guard import Guard
from queen.ledger import Judgement
from queen.options import Group
from queen.serve.protocol.wire import clean
from queen.serve.types import Caller, Query, ServeError
from queen.types import Reply

REFUSED = "no answer: this client's budget of answers is spent, or it stands accused of extraction; ask the operator"
NOT_RECORDED = "the ledger cannot record this request, so it gets no answer; try again"
FORGET = 0.9  # how slowly the measured pace of the server follows what it does now


@dataclass
class Job:
    """One request on its way."""

    query: Query
    caller: Caller
    groups: Mapping[str, Group]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[NDArray[np.float32]]


@dataclass(frozen=True)
class Batch:
    """Jobs with what the model made of them."""

    jobs: list[Job]
    seen: MeasuredBatch
    model_seconds: float


@dataclass(frozen=True)
class BatchOutcome:
    """What became of a batch, for whoever counts: its jobs, the judgement and the reply, and how long both took."""

    jobs: list[Job]
    judgement: Judgement
    reply: Reply
    model_seconds: float
    ledger_seconds: float


class Batcher:
    """Two threads and a queue around a guard."""

    def __init__(
        self,
        guard: Guard,
        *,
        max_batch: int = 64,
        max_queue: int = 4096,
        max_wait: float = 2.0,
        uniform: bool = True,
        on_batch: Callable[[BatchOutcome], None] = lambda outcome: None,  # on the event loop
        on_ledger: Callable[[LedgerError | None], None] = lambda error: None,  # in the ledger's thread
    ) -> None:
        self._guard = guard
        self._max_batch, self._max_queue, self._max_wait, self._uniform = max_batch, max_queue, max_wait, uniform
        self._on_batch, self._on_ledger = on_batch, on_ledger
        self._waiting: deque[Job] = deque()
        self._rows = 0  # waiting
        self._pace = 0.0  # seconds a row, lately
        self._changed = threading.Condition()
        self._closed = False
        self._measured: queue.Queue[Batch | None] = queue.Queue(maxsize=1)
        self._cores, self._cores_set = torch.get_num_threads(), threading.Event()
        self._threads = [
            threading.Thread(target=self._run_model, name="queen-model", daemon=True),
            threading.Thread(target=self._run_ledger, name="queen-ledger", daemon=True),
        ]

    @property
    def waiting(self) -> int:
        """Rows that wait for the model."""
        return self._rows

    @property
    def alive(self) -> bool:
        """Whether both threads run; without them nobody is ever answered."""
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Begin to answer."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float | None = None) -> None:
        """Answer what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout)

    async def submit(self, query: Query, caller: Caller) -> NDArray[np.float32]:
        """Probabilities (n, K) for one request, or what to tell the client instead."""
        if query.rows < 1:
            raise ServeError(400, "expected at least one row")
        groups = self._guard.groups(caller.groups) if caller.groups else {}
        loop = asyncio.get_running_loop()
        job = Job(query, caller, groups, loop, loop.create_future())
        with self._changed:
            if self._closed:
                raise ServeError(503, "the server is shutting down", retry_after=1)
            rows = self._rows + query.rows
            if self._waiting and (rows > self._max_queue or rows * self._pace > self._max_wait):
                raise ServeError(503, "the server is overloaded; try again", retry_after=1)
            self._waiting.append(job)
            self._rows = rows
            self._changed.notify()
        return await job.done

    def _take(self) -> list[Job]:
        """Whatever waits and fits into one batch, oldest first; nothing once closed and empty."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            taken: list[Job] = []
            rows, groups = 0, dict[str, tuple[str, ...]]()
            while self._waiting:
                job = self._waiting[0]
                if taken and (rows + job.query.rows > self._max_batch or not _fits(job, taken[0], groups)):
                    break
                groups[job.caller.client] = job.caller.groups
                taken.append(self._waiting.popleft())
                rows += job.query.rows
            self._rows -= rows
            return taken

    def _run_model(self) -> None:
        self._cores_set.wait()  # what is set last also holds for threads that are made later
        _use_cores(self._cores)
        while jobs := self._take():
            start = time.perf_counter()
            batches = self._measure([job for job in jobs if not job.done.cancelled()])
            seconds = time.perf_counter() - start
            for sound, seen in batches:
                self._measured.put(Batch(sound, seen, seconds / len(batches)))
            rows = sum(job.query.rows for job in jobs)
            self._pace = FORGET * self._pace + (1 - FORGET) * (time.perf_counter() - start) / rows
        self._measured.put(None)

    def _measure(self, jobs: list[Job]) -> list[tuple[list[Job], MeasuredBatch]]:
        """One batch through the model; if that fails, without those at fault, or else each request by itself."""
        if not jobs:
            return []
        try:
            return [(jobs, self._guard.measure(inputs.join([job.query.inputs for job in jobs])))]
        except QueenError as error:
            if len(jobs) > 1:
                sound = [job for job in jobs if self._is_sound(job)]
                parts = [sound] if len(sound) < len(jobs) else [[job] for job in jobs]
                return [found for part in parts for found in self._measure(part)]
            _fail(jobs, ServeError(400, str(error)))
        except Exception:
            _fail(jobs, ServeError(500, "the model failed on this request"))
        return []

    def _is_sound(self, job: Job) -> bool:
        """Whether a request may go to the model; if not, it is told why."""
        try:
            inputs.check(job.query.inputs, self._guard.bundle.probe.x, self._guard.bundle.input_range)
        except QueenError as error:
            _fail([job], ServeError(400, str(error)))
            return False
        return True

    def _run_ledger(self) -> None:
        _use_cores(1)  # it computes so little that helpers would only spin
        self._cores_set.set()
        while (batch := self._measured.get()) is not None:
            try:
                self._answer(batch)
            except LedgerError as error:
                self._on_ledger(error)
                _fail(batch.jobs, ServeError(503, NOT_RECORDED, retry_after=1))
            except Exception:
                _fail(batch.jobs, ServeError(500, "answering this request failed"))

    def _answer(self, batch: Batch) -> None:
        """Record, commit, answer: never the other way round."""
        jobs, start = batch.jobs, time.perf_counter()
        callers = {job.caller.client: job.groups for job in jobs}
        clients = tuple(callers)
        numbers = {client: i for i, client in enumerate(clients)}
        owner = [numbers[job.caller.client] for job in jobs for _ in range(job.query.rows)]
        pooled = list(callers.values()) if any(callers.values()) else None
        judgement = self._guard.judge_rows(batch.seen, clients, owner, pooled)
        recorded = time.perf_counter()
        self._on_ledger(None)
        reply = self._guard.reply(batch.seen, judgement, [clients[i] for i in owner], uniform=self._uniform)
        told = _told(jobs, clean(reply.probabilities.cpu().numpy()), reply.refused, judgement.failed)
        outcome = BatchOutcome(jobs, judgement, reply, batch.model_seconds, recorded - start)
        _finish(told, then=lambda: self._on_batch(outcome))


def _use_cores(count: int) -> None:
    """How many cores torch may use for this thread: each has its own number, which is set for it when first read."""
    torch.get_num_threads()
    torch.set_num_threads(count)


def _fits(job: Job, first: Job, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether a request may share a batch: tensors of the same kind and shape, each client with the same groups."""
    if groups.get(job.caller.client, job.caller.groups) != job.caller.groups:
        return False
    own, other = inputs.tensors(job.query.inputs), inputs.tensors(first.query.inputs)
    return own.keys() == other.keys() and all(
        own[name].dtype == t.dtype and own[name].shape[1:] == t.shape[1:] for name, t in other.items()
    )


Told = tuple[Job, NDArray[np.float32] | ServeError]


def _told(
    jobs: list[Job], answers: NDArray[np.float32], refused: NDArray[np.bool_], failed: NDArray[np.bool_]
) -> list[Told]:
    """Every request with its rows; one with a refused row is refused whole."""
    told: list[Told] = []
    broken: NDArray[np.bool_] = np.isnan(answers.sum(axis=1))
    masks = [mask.tolist() for mask in (failed, broken, refused)]
    start = 0
    for job in jobs:
        rows = slice(start, start + job.query.rows)
        start = rows.stop
        is_failed, is_broken, is_refused = (True in mask[rows] for mask in masks)
        if is_failed:
            told.append((job, ServeError(503, NOT_RECORDED, retry_after=1)))
        elif is_broken:
            told.append((job, ServeError(500, "the model gave no number for an answer")))
        elif is_refused:
            told.append((job, ServeError(429, REFUSED, retry_after=3600)))
        else:
            told.append((job, answers[rows]))
    return told


def _fail(jobs: list[Job], error: ServeError) -> None:
    _finish([(job, error) for job in jobs])


def _finish(told: Sequence[Told], then: Callable[[], None] = lambda: None) -> None:
    """Wake the waiting requests, all in one visit to their event loop."""

    def wake() -> None:
        for job, result in told:
            if job.done.done():  # the client went away
                continue
            if isinstance(result, ServeError):
                job.done.set_exception(result)
            else:
                job.done.set_result(result)
        then()

    if told:
        try:
            told[0][0].loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop is gone, and everybody who waited with it
            return
