"""An account of the memory that requests in flight take: so many bytes in all, and so many for each client.

A request reserves what its body will take before the body is read, and gives it back when the answer has left. So a
client that sends much, or sends and never ends, can fill no more than its share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from queen.core import inputs
from queen.serve.types import LARGE_BYTES, ModelSpec, Query, ServeError

BUFFER = 1 << 17  # bytes of a body that wait in the connection's buffer, beside those that were read already
NUMBER = 40  # bytes of one number of an answer, with the text that it becomes
TOO_MANY = "too many bytes are in flight, of this client or of all; try again"


def memory_of_body(size: int) -> int:
    """What a body of so many bytes takes while it arrives: itself, an eighth to grow into, and a buffer."""
    return size + size // 8 + min(size, BUFFER)


def memory_to_parse(size: int, header_length: int | None, *, is_packed: bool, most: int) -> int:
    """What reading a body into tensors takes besides: 32 times its JSON and 8 times its raw tensors, `most` at most.

    What a packed body becomes is not known before. (Measured: 30 times for `[],[],...`, 8 for UINT8 as INT64.)
    """
    if is_packed:
        return most
    text = size if header_length is None else min(header_length, size)
    return min(32 * text + 8 * (size - text), most)


def memory_of_query(query: Query, spec: ModelSpec) -> int:
    """What a parsed request takes until its answer has left: its tensors, and the answer as numbers and as text."""
    tensors = sum(tensor.nbytes for tensor in inputs.tensors(query.inputs).values())
    return tensors + query.rows * (spec.classes * NUMBER + query.answer_format.classification * spec.longest_name)


class MemoryAccount:
    """Bytes that are reserved, in all and by client, on one event loop.

    Those who wait leave a `spare` part of each limit to those who cannot wait. `on_refusal` is called with a client
    that is turned away.
    """

    def __init__(
        self,
        most: int,
        most_per_client: int,
        *,
        spare: int = 0,
        on_refusal: Callable[[str], None] = lambda client: None,
    ) -> None:
        self._most, self._most_per_client, self._spare = most, most_per_client, spare
        self._on_refusal = on_refusal
        self._total = 0
        self.given_back = 0  # bytes that large requests have given back so far
        self._by_client: dict[str, int] = {}
        self._queues: dict[str, deque[_Waiter]] = {}  # of clients that wait; the first one's turn is next

    @property
    def total(self) -> int:
        """Bytes that are reserved now."""
        return self._total

    @property
    def by_client(self) -> dict[str, int]:
        """The same by client; only those with more than none."""
        return dict(self._by_client)

    @property
    def largest(self) -> int:
        """Most bytes that somebody can wait for."""
        return min(self._most, self._most_per_client) - self._spare

    def reserve(self, client: str, size: int = 0) -> Reservation:
        """Reserve bytes for a client, or raise `ServeError` 503."""
        reservation = Reservation(self, client)
        if size:
            reservation.resize(size)
        return reservation

    async def wait(self, client: str, size: int) -> Reservation:
        """Reserve bytes for a client as soon as they are to be had."""
        reservation = Reservation(self, client)
        try:
            await reservation.grow(size)
        except BaseException:  # it may have had its turn in the very moment in which it was cancelled
            reservation.close()
            raise
        return reservation

    def refuse(self, client: str) -> NoReturn:
        """Tell a client to come again."""
        self._on_refusal(client)
        raise ServeError(503, TOO_MANY, retry_after=1)

    def _has_room(self, client: str, more: int) -> bool:
        return self._total + more <= self._most and self.has_share(client, more)

    def has_share(self, client: str, more: int) -> bool:
        """Whether so many more would be within this client's own limit."""
        return self._by_client.get(client, 0) + more <= self._most_per_client

    def _change(self, client: str, more: int) -> None:
        self._total += more
        own = self._by_client.get(client, 0) + more
        if own:
            self._by_client[client] = own
        else:
            self._by_client.pop(client, None)
        if more <= -LARGE_BYTES:
            self.given_back -= more
        if more < 0 and self._queues:
            self._serve_queues()

    def _serve_queues(self) -> None:
        """Give to those who wait: clients in turns, each one's in order.

        Who has no share left is passed over. Who only waits for room is not, or small ones would starve a large one.
        """
        passed_over = 0
        while passed_over < len(self._queues):
            client, queue = next(iter(self._queues.items()))
            waiter = queue[0]
            more = waiter.size - waiter.reservation.size + self._spare
            if waiter.turn.done():  # cancelled a moment ago
                queue.popleft()
            elif not self.has_share(client, more):
                passed_over += 1
            elif self._has_room(client, more):
                queue.popleft()
                waiter.reservation.resize(waiter.size)
                waiter.turn.set_result(None)
                passed_over = 0
            else:
                return
            del self._queues[client]
            if queue:
                self._queues[client] = queue  # behind all others

    def _enqueue(self, waiter: _Waiter) -> None:
        client = waiter.reservation.client
        self._queues.setdefault(client, deque()).append(waiter)
        self._serve_queues()

    def _leave(self, waiter: _Waiter) -> None:
        """Forget one who waits no more; those behind it may fit where it did not."""
        client = waiter.reservation.client
        queue = self._queues.get(client)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[client]
            self._serve_queues()


class Reservation:
    """Bytes reserved for one request, until it is closed: `with account.reserve(...) as reservation`."""

    __slots__ = ("_account", "_is_closed", "client", "size")

    def __init__(self, account: MemoryAccount, client: str) -> None:
        self._account, self._is_closed = account, False
        self.client, self.size = client, 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def resize(self, size: int) -> None:
        """Reserve so many bytes instead; if there are not as many, nothing changes and `ServeError` 503 is raised."""
        more, account = size - self.size, self._account
        if self._is_closed:
            raise RuntimeError("this reservation was given back")
        if more > 0 and not account._has_room(self.client, more):
            account.refuse(self.client)
        if more:
            self.size = size
            account._change(self.client, more)

    async def grow(self, size: int) -> None:
        """The same, but wait until there are as many, which may be `largest` at most."""
        account = self._account
        if not account._queues and account._has_room(self.client, size - self.size + account._spare):
            self.resize(size)
            return
        waiter = _Waiter(self, size, asyncio.get_running_loop().create_future())
        account._enqueue(waiter)
        try:
            await waiter.turn
        finally:
            account._leave(waiter)

    def close(self) -> None:
        """Give everything back; a second time changes nothing."""
        if not self._is_closed:
            self._is_closed = True
            if self.size:
                self.size, size = 0, self.size
                self._account._change(self.client, -size)


@dataclass(eq=False, frozen=True)
class _Waiter:
    """A reservation that is to grow to a size, and the future that its request waits for."""

    reservation: Reservation
    size: int
    turn: asyncio.Future[None]
