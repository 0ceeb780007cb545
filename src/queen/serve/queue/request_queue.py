"""The requests that wait for the model, for several threads: event loops put them in, the model's thread takes batches.

See `fair_queue` for whose turn it is.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from queen.core import inputs
from queen.options import Group
from queen.refusal import Refusal
from queen.serve.queue.fair_queue import FairQueue
from queen.serve.types import Caller, Query, ServeError

CLIENT_FULL = "this client has {} rows waiting, and the limit for one client is {}: wait for answers and try again"
OVERLOADED = "the server is overloaded; try again"
MAX_ACCUSED = 10_000  # clients remembered as accused, those accused last
CROWDED_SECONDS = 1.0  # seconds after a batch of other clients than before in which several are expected to ask
SELDOM, OFTEN = 0.005, 0.0005  # seconds after which a thread must let others run: Python's own choice, and ours


@dataclass(slots=True)
class LargeRequest:
    """What the parts of a request have in common: if one fails, so do all that have not been answered yet.

    `refusal` says why rows were refused, if some were: the other parts are answered all the same.
    """

    query: Query
    checked: bool = False  # all of it is, before the first part is recorded
    failed: bool = False
    refusal: Refusal | None = None


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


class RequestQueue:
    """At most `max_queue` rows wait, and a client with `max_client_queue` of them may add nothing.

    When all is full, the longest line loses its newest request, so nobody is refused because somebody else has filled
    the queue; accused clients share one turn and lose first. A batch has `max_batch` rows at most, and while several
    clients ask `max_turn` of each. Nobody is let in who must expect to wait longer than `max_wait` seconds.
    """

    def __init__(
        self, *, max_batch: int, max_turn: int, max_queue: int, max_client_queue: int, max_wait: float
    ) -> None:
        self.pace = 0.0  # seconds per row, lately
        self._max_batch, self._max_turn = max_batch, min(max_turn, max_batch)
        self._max_queue, self._max_client_queue, self._max_wait = max_queue, max_client_queue, max_wait
        self._lines: FairQueue[PendingRequest] = FairQueue(turn=self._max_turn, max_client_rows=max_client_queue)
        self._accused: OrderedDict[str, None] = OrderedDict()  # those accused last are last
        self._last_clients: Set[str] = frozenset()  # those of the last batch
        self._crowded_until = 0.0  # until when it is likely that several clients ask
        self._changed = threading.Condition()
        self._closed = self._is_backlogged = False

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._lines.rows

    def split(
        self, query: Query, caller: Caller, groups: Mapping[str, Group], loop: asyncio.AbstractEventLoop
    ) -> list[PendingRequest]:
        """A query as one request, or as several that have at most one turn's rows each."""
        if query.rows <= self._max_turn:
            return [PendingRequest(query, caller, groups, loop, loop.create_future(), query.rows)]
        whole = LargeRequest(query)
        return [
            PendingRequest(part, caller, groups, loop, loop.create_future(), part.rows, whole)
            for part in _split_query(query, self._max_turn)
        ]

    def has_room(self, client: str) -> bool:
        """Whether a client may add a request."""
        return self._lines.has_room(client)

    def check_room(self, client: str) -> None:
        """Raise `ServeError` 503 if a client has so many rows waiting that it may not add a request."""
        if not self._lines.has_room(client):
            message = CLIENT_FULL.format(self._lines.rows_of(client), self._max_client_queue)
            raise ServeError(503, message, retry_after=1)

    def put(self, client: str, parts: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Add one request, or raise `ServeError` 503; returns what had to leave for it, perhaps the same one."""
        with self._changed:
            if self._closed:
                raise ServeError(503, "the server is shutting down", retry_after=1)
            self.check_room(client)
            lines, before = self._lines, self._lines.rows
            if lines.rows_ahead(client) * self.pace > self._max_wait:
                raise ServeError(503, OVERLOADED, retry_after=1)
            lines.push(client, parts, accused=client in self._accused)
            shed: list[PendingRequest] = []
            while before and lines.rows > self._max_queue:  # who finds nobody waiting may enter with any size
                shed += lines.shed()
            self._changed.notify()
            return shed

    def take(self) -> list[PendingRequest]:
        """Wait for requests and take those that fit into one batch, clients in turn; none once closed and empty."""
        with self._changed:
            taken: list[PendingRequest] = []
            while not taken and not (self._closed and not self._lines.rows):
                while not self._lines.rows and not self._closed:
                    self._changed.wait()
                taken = self._take_batch()
            self._set_switching(is_backlogged=self._lines.rows > self._max_batch)
            return taken

    def close(self) -> None:
        """Let nothing more in."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def note_accused(self, clients: Sequence[str], accused: NDArray[np.bool_]) -> None:
        """Remember which of these clients, one per row, stand accused by their last row, and which do not any more."""
        if not self._accused and not accused.any():
            return
        with self._changed:
            for client, is_accused in dict(zip(clients, accused.tolist(), strict=True)).items():
                self._accused.pop(client, None)
                if is_accused:
                    self._accused[client] = None
                self._lines.set_accused(client, is_accused)
            while len(self._accused) > MAX_ACCUSED:
                self._lines.set_accused(self._accused.popitem(last=False)[0], False)

    def _take_batch(self) -> list[PendingRequest]:
        """Requests that fit into one batch; while others ask too, it has no more than one turn of each client."""
        taken: list[PendingRequest] = []
        rows, now = 0, time.monotonic()
        share = self._max_turn if now < self._crowded_until else self._max_batch
        shares, groups, kind = dict[str, int](), dict[str, tuple[str, ...]](), None
        while (request := self._lines.first()) is not None:
            if not request.dropped:
                client, rows = request.caller.client, rows + request.rows
                own = shares.get(client, 0) + request.rows
                is_full = rows > self._max_batch or own > share
                own_kind, own_groups = _kind(request.query), request.caller.groups
                if taken and (is_full or own_kind != kind or groups.get(client, own_groups) != own_groups):
                    break  # each client must have the same groups in all of a batch
                shares[client], groups[client], kind = own, own_groups, own_kind
                taken.append(request)
            self._lines.pop()
        if shares.keys() != self._last_clients:
            self._last_clients, self._crowded_until = shares.keys(), now + CROWDED_SECONDS
        return taken

    def _set_switching(self, *, is_backlogged: bool) -> None:
        """While more than a batch waits, let Python's threads take turns ten times as often.

        Else whoever brings a small request waits 5 ms for the interpreter several times, behind the rows of a flood.
        It costs a sixth of the throughput of small requests, so it is not for every day.
        """
        if is_backlogged != self._is_backlogged:
            self._is_backlogged = is_backlogged
            sys.setswitchinterval(OFTEN if is_backlogged else SELDOM)


def _split_query(query: Query, size: int) -> Sequence[Query]:
    """A query as one or several of at most `size` rows."""
    if query.rows <= size:
        return (query,)
    starts = range(0, query.rows, size)
    return [Query(inputs.take(query.inputs, slice(i, i + size)), min(size, query.rows - i)) for i in starts]


def _kind(query: Query) -> object:
    """What queries must have in common to go through the model together: types and shapes of their tensors."""
    if isinstance(query.inputs, Tensor):
        return query.inputs.dtype, query.inputs.shape[1:]
    return {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in query.inputs.items()}
