"""Puts the requests of all clients into batches for the model: greedy, in order of arrival, at the pace of the ledger.

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

from queen.core import inputs
from queen.errors import LedgerError, QueenError
from queen.guard import Guard
from queen.ledger import Judgement
from queen.options import Group
from queen.perturber import MeasuredBatch
from queen.policy import Action
from queen.serve.protocol.rest_write import clean
from queen.serve.refusal import refuse
from queen.serve.types import Caller, Query, ServeError
from queen.types import Reply

NOT_RECORDED = "the ledger cannot record this request, so it gets no answer; try again"
FORGET = 0.9  # weight of the past in the running mean of the pace


@dataclass
class PendingRequest:
    """One request, and the future that its client waits for on an event loop."""

    query: Query
    caller: Caller
    groups: Mapping[str, Group]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[NDArray[np.float32]]


@dataclass(frozen=True)
class RequestBatch:
    """Requests that went through the model together, and its outputs for all of their rows."""

    requests: list[PendingRequest]
    measured: MeasuredBatch
    model_seconds: float


@dataclass(frozen=True)
class BatchOutcome:
    """What became of a batch, for counting and recording; the seconds are those of the model and of the ledger."""

    requests: list[PendingRequest]
    judgement: Judgement
    reply: Reply
    model_seconds: float
    ledger_seconds: float


class Batcher:
    """A queue of requests around a guard, and two threads that answer them: one for the model, one for the ledger."""

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
        self._waiting: deque[PendingRequest] = deque()
        self._rows = 0  # of all requests that wait
        self._pace = 0.0  # seconds per row, lately
        self._changed = threading.Condition()
        self._closed = False
        self._measured: queue.Queue[RequestBatch | None] = queue.Queue(maxsize=1)
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
        """Begin to answer requests."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float | None = None) -> None:
        """Answer the requests that wait, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout)

    async def submit(self, query: Query, caller: Caller) -> NDArray[np.float32]:
        """Probabilities (n, K) for one request; raises `ServeError` if the client gets an error instead.

        Where it may be answered in part, refused rows are NaN.
        """
        if query.rows < 1:
            raise ServeError(400, "expected at least one row")
        groups = self._guard.groups(caller.groups) if caller.groups else {}
        loop = asyncio.get_running_loop()
        request = PendingRequest(query, caller, groups, loop, loop.create_future())
        with self._changed:
            if self._closed:
                raise ServeError(503, "the server is shutting down", retry_after=1)
            rows = self._rows + query.rows
            if self._waiting and (rows > self._max_queue or rows * self._pace > self._max_wait):
                raise ServeError(503, "the server is overloaded; try again", retry_after=1)
            self._waiting.append(request)
            self._rows = rows
            self._changed.notify()
        return await request.answer

    def _take(self) -> list[PendingRequest]:
        """Wait for requests and take those that fit into one batch, oldest first; none once closed and empty."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            taken: list[PendingRequest] = []
            rows, groups = 0, dict[str, tuple[str, ...]]()
            while self._waiting:
                request = self._waiting[0]
                is_full = rows + request.query.rows > self._max_batch
                if taken and (is_full or not _can_share_batch(request, taken[0], groups)):
                    break
                groups[request.caller.client] = request.caller.groups
                taken.append(self._waiting.popleft())
                rows += request.query.rows
            self._rows -= rows
            return taken

    def _run_model(self) -> None:
        self._cores_set.wait()  # the last number set is also that of threads made later: it must be the model's
        _use_cores(self._cores)
        while requests := self._take():
            start = time.perf_counter()
            batches = self._measure([request for request in requests if not request.answer.cancelled()])
            seconds = time.perf_counter() - start
            for part, measured in batches:
                self._measured.put(RequestBatch(part, measured, seconds / len(batches)))
            rows = sum(request.query.rows for request in requests)
            self._pace = FORGET * self._pace + (1 - FORGET) * (time.perf_counter() - start) / rows
        self._measured.put(None)

    def _measure(self, requests: list[PendingRequest]) -> list[tuple[list[PendingRequest], MeasuredBatch]]:
        """Run the model on all requests at once; if that fails, without those at fault, or else on one at a time."""
        if not requests:
            return []
        try:
            return [(requests, self._guard.measure(inputs.join([request.query.inputs for request in requests])))]
        except QueenError as error:
            if len(requests) > 1:
                valid = [request for request in requests if self._is_valid(request)]
                parts = [valid] if len(valid) < len(requests) else [[request] for request in requests]
                return [batch for part in parts for batch in self._measure(part)]
            _fail(requests, ServeError(400, str(error)))
        except Exception:
            _fail(requests, ServeError(500, "the model failed on this request"))
        return []

    def _is_valid(self, request: PendingRequest) -> bool:
        """Whether the model takes these inputs; if not, the request is answered with the error."""
        try:
            inputs.check(request.query.inputs, self._guard.bundle.probe.x, self._guard.bundle.input_range)
        except QueenError as error:
            _fail([request], ServeError(400, str(error)))
            return False
        return True

    def _run_ledger(self) -> None:
        _use_cores(1)  # it computes so little that more threads would only spin
        self._cores_set.set()
        while (batch := self._measured.get()) is not None:
            try:
                self._answer(batch)
            except LedgerError as error:
                self._on_ledger(error)
                _fail(batch.requests, ServeError(503, NOT_RECORDED, retry_after=1))
            except Exception:
                _fail(batch.requests, ServeError(500, "answering this request failed"))

    def _answer(self, batch: RequestBatch) -> None:
        """Record, commit, answer: never the other way round."""
        requests, start = batch.requests, time.perf_counter()
        callers = {request.caller.client: request.groups for request in requests}
        clients = tuple(callers)
        numbers = {client: i for i, client in enumerate(clients)}
        owner = [numbers[request.caller.client] for request in requests for _ in range(request.query.rows)]
        pooled = list(callers.values()) if any(callers.values()) else None
        judgement = self._guard.judge_rows(batch.measured, clients, owner, pooled)
        recorded = time.perf_counter()
        self._on_ledger(None)
        reply = self._guard.reply(batch.measured, judgement, [clients[i] for i in owner], uniform=self._uniform)
        probabilities = clean(reply.probabilities.cpu().numpy())
        openly = self._guard.policy.alarmed is Action.REFUSE
        results = _split_results(requests, probabilities, reply.refused, judgement, openly=openly)
        outcome = BatchOutcome(requests, judgement, reply, batch.model_seconds, recorded - start)
        _finish(results, then=lambda: self._on_batch(outcome))


def _use_cores(count: int) -> None:
    """Let torch use this many cores in the calling thread, without a change to other threads."""
    torch.get_num_threads()  # the first read in a thread sets its number, and would overwrite ours later
    torch.set_num_threads(count)


def _can_share_batch(request: PendingRequest, first: PendingRequest, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether a request fits to the batch: tensors of the same kind and shape, each client with the same groups."""
    if groups.get(request.caller.client, request.caller.groups) != request.caller.groups:
        return False
    own, other = inputs.tensors(request.query.inputs), inputs.tensors(first.query.inputs)
    return own.keys() == other.keys() and all(
        own[name].dtype == t.dtype and own[name].shape[1:] == t.shape[1:] for name, t in other.items()
    )


Result = tuple[PendingRequest, NDArray[np.float32] | ServeError]


def _split_results(
    requests: list[PendingRequest],
    answers: NDArray[np.float32],
    refused: NDArray[np.bool_],
    judgement: Judgement,
    *,
    openly: bool,
) -> list[Result]:
    """The batch's rows, split by request; one with a failed or refused row gets an error for all of its rows.

    Where it may be answered in part, its refused rows are NaN. `openly`: accused clients may know that they are.
    """
    results: list[Result] = []
    broken: NDArray[np.bool_] = np.isnan(answers.sum(axis=1))
    masks = [mask.tolist() for mask in (judgement.failed, broken, refused)]
    start = 0
    for request in requests:
        rows = slice(start, start + request.query.rows)
        start = rows.stop
        is_failed, is_broken, is_refused = (True in mask[rows] for mask in masks)
        if is_failed:
            results.append((request, ServeError(503, NOT_RECORDED, retry_after=1)))
        elif is_broken:
            results.append((request, ServeError(500, "the model gave no number for an answer")))
        elif is_refused and request.query.partial:
            results.append((request, np.where(refused[rows, None], np.float32(np.nan), answers[rows])))
        elif is_refused:
            results.append((request, refuse(judgement, rows.start, masks[2][rows], openly=openly)))
        else:
            results.append((request, answers[rows]))
    return results


def _fail(requests: list[PendingRequest], error: ServeError) -> None:
    _finish([(request, error) for request in requests])


def _finish(results: Sequence[Result], then: Callable[[], None] = lambda: None) -> None:
    """Wake the requests with their answers or errors, all in one visit to their event loop."""

    def wake() -> None:
        for request, result in results:
            if request.answer.done():  # the client went away
                continue
            if isinstance(result, ServeError):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)
        then()

    if results:
        try:
            results[0][0].loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop is gone, and with it everybody who waited
            return
