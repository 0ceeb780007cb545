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
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from queen.core import inputs
from queen.errors import LedgerError, QueenError, UpstreamError, tell_client
from queen.guard import Guard
from queen.ledger import Judgement
from queen.perturber import MeasuredBatch
from queen.policy import Action
from queen.serve.protocol.rest_write import clean
from queen.serve.queue.request_queue import OVERLOADED, PendingRequest, RequestQueue
from queen.serve.queue.results import NOT_RECORDED, fail, finish, split_results
from queen.serve.queue.suspects import Suspects, halves
from queen.serve.refusal import refuse
from queen.serve.types import Caller, Query, ServeError
from queen.types import Reply

KNOWN_BY_ANSWER = (Action.REFUSE, Action.LABEL)  # who gets such answers knows that it stands accused
NOT_ASKED = "the model cannot be asked at the moment, so nothing was recorded; try again"
TOO_LATE = "the model did not answer in time, so nothing was recorded; try again"
FORGET = 0.9  # weight of the past in the running mean of the pace
SHORT_SECONDS = 0.0002  # not worth a wait


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
        self._uniform = uniform
        self._on_batch, self._on_ledger = on_batch, on_ledger
        self.queue = RequestQueue(
            max_batch=max_batch,
            max_turn=max_turn,
            max_queue=max_queue,
            max_client_queue=max_client_queue,
            max_wait=max_wait,
        )
        self._tells_accused = guard.policy.alarmed in KNOWN_BY_ANSWER and not guard.bundle.observe
        self._measured: queue.Queue[RequestBatch | None] = queue.Queue()
        self._is_recorded = threading.Event()  # while the ledger has nothing to record
        self._model_seconds = self._ledger_seconds = 0.0  # that a batch takes them, lately
        self._cores, self._cores_set = torch.get_num_threads(), threading.Event()
        self._suspects = Suspects()
        self._threads = [
            threading.Thread(target=self._run_model, name="queen-model", daemon=True),
            threading.Thread(target=self._run_ledger, name="queen-ledger", daemon=True),
        ]

    @property
    def waiting(self) -> int:
        """Rows that wait for the model."""
        return self.queue.rows

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
        self.queue.close()
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
        parts = self.queue.split(query, caller, groups, asyncio.get_running_loop())
        shed = self.queue.put(caller.client, parts)
        if shed:
            fail(shed, ServeError(503, OVERLOADED, retry_after=1))
        if len(parts) == 1:
            return await parts[0].answer
        try:
            answers = np.concatenate(await asyncio.gather(*(part.answer for part in parts)))
            whole = parts[0].whole
            if whole is not None and whole.refusal and not query.partial:
                raise refuse(whole.refusal, np.isnan(answers[:, 0]).tolist())
            return answers
        finally:  # after an error, or if this was cancelled: what is left of the request is dropped
            for part in parts:
                part.answer.cancel()

    def _run_model(self) -> None:
        self._cores_set.wait()  # the last number set is also that of threads made later: it must be the model's
        _use_cores(self._cores)
        while requests := self.queue.take():
            start = time.perf_counter()
            batches = self._measure(requests)
            seconds = time.perf_counter() - start
            self._model_seconds = FORGET * self._model_seconds + (1 - FORGET) * seconds
            for part, measured in batches:
                self._measured.put(RequestBatch(part, measured, seconds / len(batches)))
            self._measured.join()  # what waits is taken as late as possible: in turn, and in larger batches
            self._wait_for_ledger()
            rows = sum(request.query.rows for request in requests)
            self.queue.pace = FORGET * self.queue.pace + (1 - FORGET) * (time.perf_counter() - start) / rows
        self._measured.put(None)

    def _wait_for_ledger(self) -> None:
        """Wait until the ledger will be ready about when the model is ready with the next batch."""
        ahead = self._ledger_seconds - self._model_seconds
        if ahead > SHORT_SECONDS:
            self._is_recorded.wait(ahead)

    def _measure(self, requests: list[PendingRequest]) -> list[tuple[list[PendingRequest], MeasuredBatch]]:
        """Run the model on all requests at once; if that fails, without those at fault, or else on one at a time.

        Requests of clients with one that the upstream did not take are asked after the others, and not for ever.
        """
        requests = [request for request in requests if request.whole is None or self._is_part_of_valid(request)]
        others, suspected = self._suspects.divide(requests)
        return self._try(others) + self._try(suspected)

    def _try(self, requests: list[PendingRequest]) -> list[tuple[list[PendingRequest], MeasuredBatch]]:
        if not requests:
            return []
        if not self._suspects.may_ask(requests):
            fail(requests, ServeError(503, NOT_ASKED, retry_after=1))
            return []
        try:
            return [(requests, self._guard.measure(inputs.join([request.query.inputs for request in requests])))]
        except UpstreamError as error:
            if error.may_be_the_request:
                if len(requests) > 1:  # whose it is takes a few questions to find
                    return [batch for part in halves(requests) for batch in self._try(part)]
                self._suspects.add(requests[0], error)
            late = error.kind == "late"
            fail(requests, ServeError(504 if late else 503, TOO_LATE if late else NOT_ASKED, retry_after=1))
        except QueenError as error:
            if len(requests) > 1:
                valid = [request for request in requests if self._is_valid(request)]
                parts = [valid] if len(valid) < len(requests) else [[request] for request in requests]
                return [batch for part in parts for batch in self._try(part)]
            fail(requests, ServeError(400, tell_client(error)))
        except Exception:
            fail(requests, ServeError(500, "the model failed on this request"))
        return []

    def _is_valid(self, request: PendingRequest) -> bool:
        """Whether the model takes these inputs; if not, the request is answered with the error."""
        try:
            self._guard.check((request.whole or request).query.inputs)
        except QueenError as error:
            fail([request], ServeError(400, tell_client(error)))
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
            self._is_recorded.clear()
            self._measured.task_done()  # the model may go on while this one is recorded
            start = time.perf_counter()
            try:
                self._answer(batch)
            except LedgerError as error:
                self._on_ledger(error)
                fail(batch.requests, ServeError(503, NOT_RECORDED, retry_after=1))
            except Exception:
                fail(batch.requests, ServeError(500, "answering this request failed"))
            seconds = time.perf_counter() - start
            self._ledger_seconds = FORGET * self._ledger_seconds + (1 - FORGET) * seconds
            self._is_recorded.set()

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
        if self._tells_accused:
            self.queue.note_accused([clients[i] for i in owner], judgement.alarmed & ~judgement.trusted)
        reply = self._guard.reply(batch.measured, judgement, [clients[i] for i in owner], uniform=self._uniform)
        probabilities = clean(reply.probabilities.cpu().numpy())
        openly = self._guard.policy.alarmed is Action.REFUSE
        results = split_results(requests, probabilities, reply.refused, judgement, openly=openly)
        outcome = BatchOutcome(requests, judgement, reply, batch.model_seconds, recorded - start)
        finish(results, then=lambda: self._on_batch(outcome))


def _use_cores(count: int) -> None:
    """Let torch use this many cores in the calling thread, without a change to other threads."""
    torch.get_num_threads()  # the first read in a thread sets its number, and would overwrite ours later
    torch.set_num_threads(count)
