"""Puts the requests of all clients into batches for the model: greedy, clients in turn, at the pace of the ledger.

Each client's rows go in order of arrival, and clients take turns by rows (`fair_queue`): nobody waits for another one's
flood. A request of more rows than a turn has is taken in parts, and answered when all of them are.

One thread runs the model on whatever waits and never sleeps for more; a second one records and answers, so that the
model works on the next batch while the ledger commits the last one. A slow ledger holds the model back, batches grow,
and one commit carries more requests: that is the group commit.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
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
from queen.serve.fair_queue import FairQueue
from queen.serve.protocol.rest_write import clean
from queen.serve.types import Caller, Query, ServeError
from queen.types import Reply

REFUSED = "no answer: this client's budget of answers is spent, or it stands accused of extraction; ask the operator"
NOT_RECORDED = "the ledger cannot record this request, so it gets no answer; try again"
CLIENT_FULL = "this client has {} rows waiting, and the limit for one client is {}: wait for answers and try again"
OVERLOADED = "the server is overloaded; try again"
KNOWN_BY_ANSWER = (Action.REFUSE, Action.LABEL)  # who gets such answers knows that it stands accused
MAX_ACCUSED = 10_000  # clients remembered as accused, those accused last
CROWDED = 1.0  # seconds after a batch of other clients than before in which several are expected to ask
SELDOM, OFTEN = 0.005, 0.0005  # seconds after which a thread must let others run: Python's own choice, and ours
FORGET = 0.9  # weight of the past in the running mean of the pace


@dataclass(slots=True)
class LargeRequest:
    """What the parts of a request have in common: if one fails, so do all that have not been answered yet."""

    query: Query
    checked: bool = False  # all of it is, before the first part is recorded
    failed: bool = False


@dataclass(slots=True)
class PendingRequest:
    """One request, or a part of a large one, and the future that its client waits for on an event loop."""

    query: Query
    caller: Caller
    groups: Mapping[str, Group]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[NDArray[np.float32]]
    rows: int
    whole: LargeRequest | None = None  # if this is a part

    @property
    def dropped(self) -> bool:
        """Whether nobody waits for it any more: the client went away, or another part of its request has failed."""
        return self.answer.done() or (self.whole is not None and self.whole.failed)


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
    """A fair queue of requests around a guard, and two threads that answer them: one for the model, one for the ledger.

    At most `max_queue` rows wait, and a client with `max_client_queue` of them may add nothing. When all is full, the
    longest line loses its newest request, so nobody is refused because somebody else has filled the queue. Accused
    clients share one turn and lose first, unless they are answered as if they were not (`on_alarm` decoy, reverse or
    observe): there they are served like everybody else, or the wait would tell what the answers hide.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        max_batch: int = 64,
        max_turn: int = 16,
        max_queue: int = 4096,
        max_client_queue: int = 1024,
        max_wait: float = 2.0,
        uniform: bool = True,
        on_batch: Callable[[BatchOutcome], None] = lambda outcome: None,  # on the event loop
        on_ledger: Callable[[LedgerError | None], None] = lambda error: None,  # in the ledger's thread
    ) -> None:
        self._guard = guard
        self._max_batch, self._max_queue, self._max_wait, self._uniform = max_batch, max_queue, max_wait, uniform
        self._on_batch, self._on_ledger = on_batch, on_ledger
        self._max_client_queue = max_client_queue
        self._max_turn = min(max_turn, max_batch)
        self._queue: FairQueue[PendingRequest] = FairQueue(turn=self._max_turn, max_client_rows=max_client_queue)
        self._last_clients: Set[str] = frozenset()  # those of the last batch
        self._crowded_until = 0.0  # until when it is likely that several clients ask
        self._accused: OrderedDict[str, None] = OrderedDict()  # those accused last are last
        self._tells_accused = guard.policy.alarmed in KNOWN_BY_ANSWER and not guard.bundle.observe
        self._pace = 0.0  # seconds per row, lately
        self._changed = threading.Condition()
        self._closed = self._is_backlogged = False
        self._measured: queue.Queue[RequestBatch | None] = queue.Queue()
        self._cores, self._cores_set = torch.get_num_threads(), threading.Event()
        self._threads = [
            threading.Thread(target=self._run_model, name="queen-model", daemon=True),
            threading.Thread(target=self._run_ledger, name="queen-ledger", daemon=True),
        ]

    @property
    def waiting(self) -> int:
        """Rows that wait for the model."""
        return self._queue.rows

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
        """Probabilities (n, K) for one request; raises `ServeError` if the client gets an error instead."""
        if query.rows < 1:
            raise ServeError(400, "expected at least one row")
        groups = self._guard.groups(caller.groups) if caller.groups else {}
        loop = asyncio.get_running_loop()
        whole = LargeRequest(query) if query.rows > self._max_turn else None
        parts = [
            PendingRequest(part, caller, groups, loop, loop.create_future(), part.rows, whole)
            for part in _split(query, self._max_turn)
        ]
        with self._changed:
            shed = self._enter(caller.client, query.rows, parts)
            self._changed.notify()
        if shed:
            _fail(shed, ServeError(503, OVERLOADED, retry_after=1))
        if len(parts) == 1:
            return await parts[0].answer
        try:
            return np.concatenate(await asyncio.gather(*(part.answer for part in parts)))
        finally:  # after an error, or if the client went away: what is left of the request is dropped
            for part in parts:
                part.answer.cancel()

    def check_room(self, client: str) -> None:
        """Raise `ServeError` 503 if a client has so many rows waiting that it may not add a request."""
        if not self._queue.has_room(client):
            message = CLIENT_FULL.format(self._queue.rows_of(client), self._max_client_queue)
            raise ServeError(503, message, retry_after=1)

    def _enter(self, client: str, rows: int, parts: list[PendingRequest]) -> list[PendingRequest]:
        """Add a request to the queue, or raise `ServeError` 503; returns what had to leave for it."""
        if self._closed:
            raise ServeError(503, "the server is shutting down", retry_after=1)
        self.check_room(client)
        if self._queue.rows_ahead(client) * self._pace > self._max_wait:
            raise ServeError(503, OVERLOADED, retry_after=1)
        self._queue.push(client, parts, accused=client in self._accused)
        shed: list[PendingRequest] = []
        while self._queue.rows > max(self._max_queue, rows):  # whoever finds nobody waiting may enter
            shed += self._queue.shed()
        return shed

    def _take(self) -> list[PendingRequest]:
        """Wait for requests and take those that fit into one batch, clients in turn; none once closed and empty."""
        with self._changed:
            taken: list[PendingRequest] = []
            while not taken and not (self._closed and not self._queue.rows):
                while not self._queue.rows and not self._closed:
                    self._changed.wait()
                taken = self._take_batch()
            self._set_switching(is_backlogged=self._queue.rows > self._max_batch)
            return taken

    def _set_switching(self, *, is_backlogged: bool) -> None:
        """While more than a batch waits, let Python's threads take turns ten times as often.

        Else whoever brings a small request waits 5 ms for the interpreter several times, behind the rows of a flood.
        It costs a sixth of the throughput of small requests, so it is not for every day.
        """
        if is_backlogged != self._is_backlogged:
            self._is_backlogged = is_backlogged
            sys.setswitchinterval(OFTEN if is_backlogged else SELDOM)

    def _take_batch(self) -> list[PendingRequest]:
        """Requests that fit into one batch; while others ask too, it has no more than one turn of each client."""
        taken: list[PendingRequest] = []
        rows, now = 0, time.monotonic()
        share = self._max_turn if now < self._crowded_until else self._max_batch
        shares, groups = dict[str, int](), dict[str, tuple[str, ...]]()
        while (request := self._queue.first()) is not None:
            if not request.dropped:
                client, rows = request.caller.client, rows + request.rows
                own = shares.get(client, 0) + request.rows
                is_full = rows > self._max_batch or own > share
                if taken and (is_full or not _can_share_batch(request, taken[0], groups)):
                    break
                shares[client], groups[client] = own, request.caller.groups
                taken.append(request)
            self._queue.pop()
        if shares.keys() != self._last_clients:
            self._last_clients, self._crowded_until = shares.keys(), now + CROWDED
        return taken

    def _run_model(self) -> None:
        self._cores_set.wait()  # the last number set is also that of threads made later: it must be the model's
        _use_cores(self._cores)
        while requests := self._take():
            start = time.perf_counter()
            batches = self._measure(requests)
            seconds = time.perf_counter() - start
            for part, measured in batches:
                self._measured.put(RequestBatch(part, measured, seconds / len(batches)))
            self._measured.join()  # what waits is taken as late as possible: in turn, and in larger batches
            rows = sum(request.query.rows for request in requests)
            self._pace = FORGET * self._pace + (1 - FORGET) * (time.perf_counter() - start) / rows
        self._measured.put(None)

    def _measure(self, requests: list[PendingRequest]) -> list[tuple[list[PendingRequest], MeasuredBatch]]:
        """Run the model on all requests at once; if that fails, without those at fault, or else on one at a time."""
        requests = [request for request in requests if request.whole is None or self._is_part_of_valid(request)]
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
            self._guard.check((request.whole or request).query.inputs)
        except QueenError as error:
            _fail([request], ServeError(400, str(error)))
            return False
        return True

    def _is_part_of_valid(self, part: PendingRequest) -> bool:
        """The same for all of a large request, so that nothing of it is recorded if a later part is wrong."""
        whole = part.whole
        if whole is not None and not whole.checked:
            whole.checked = True
            self._is_valid(part)
        return not part.dropped

    def _run_ledger(self) -> None:
        _use_cores(1)  # it computes so little that more threads would only spin
        self._cores_set.set()
        while (batch := self._measured.get()) is not None:
            self._measured.task_done()  # the model may go on while this one is recorded
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
        self._note_accused(clients, owner, judgement)
        reply = self._guard.reply(batch.measured, judgement, [clients[i] for i in owner], uniform=self._uniform)
        probabilities = clean(reply.probabilities.cpu().numpy())
        results = _split_results(requests, probabilities, reply.refused, judgement.failed)
        outcome = BatchOutcome(requests, judgement, reply, batch.model_seconds, recorded - start)
        _finish(results, then=lambda: self._on_batch(outcome))

    def _note_accused(self, clients: tuple[str, ...], owner: Sequence[int], judgement: Judgement) -> None:
        """Remember who stands accused, if that may show, and who does not any more."""
        if not self._tells_accused or not (self._accused or judgement.alarmed.any()):
            return
        alarmed = dict(zip(owner, (judgement.alarmed & ~judgement.trusted).tolist(), strict=True))  # by the last row
        with self._changed:
            for number, accused in alarmed.items():
                client = clients[number]
                self._accused.pop(client, None)
                if accused:
                    self._accused[client] = None
                self._queue.set_accused(client, accused)
            while len(self._accused) > MAX_ACCUSED:
                self._queue.set_accused(self._accused.popitem(last=False)[0], False)


def _split(query: Query, size: int) -> Sequence[Query]:
    """A query as one or several of at most `size` rows."""
    if query.rows <= size:
        return (query,)
    starts = range(0, query.rows, size)
    return [Query(inputs.take(query.inputs, slice(i, i + size)), min(size, query.rows - i)) for i in starts]


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
    failed: NDArray[np.bool_],
) -> list[Result]:
    """The batch's rows, split by request; one with a failed or refused row gets an error for all of its rows."""
    results: list[Result] = []
    broken: NDArray[np.bool_] = np.isnan(answers.sum(axis=1))
    masks = [mask.tolist() for mask in (failed, broken, refused)]
    start = 0
    for request in requests:
        rows = slice(start, start + request.query.rows)
        start = rows.stop
        is_failed, is_broken, is_refused = (True in mask[rows] for mask in masks)
        if is_failed:
            results.append((request, ServeError(503, NOT_RECORDED, retry_after=1)))
        elif is_broken:
            results.append((request, ServeError(500, "the model gave no number for an answer")))
        elif is_refused:
            results.append((request, ServeError(429, REFUSED, retry_after=3600)))
        else:
            results.append((request, answers[rows]))
    return results


def _fail(requests: list[PendingRequest], error: ServeError) -> None:
    _finish([(request, error) for request in requests])


def _finish(results: Sequence[Result], then: Callable[[], None] = lambda: None) -> None:
    """Wake the requests with their answers or errors, all in one visit to their event loop."""
    for request, result in results:
        if request.whole is not None and isinstance(result, ServeError):
            request.whole.failed = True

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
