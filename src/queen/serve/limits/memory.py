"""An account of the memory that requests in flight take: so many bytes in all, and so many for each client.

A request reserves bytes as they arrive, and gives them back when its answer has left. A client that sends much, or
sends and never ends, can fill no more than its share. And when several have filled all there is, room is made for who
has less: the client that has most loses its newest request that is still arriving.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from queen.serve.types import LARGE_BYTES, ServeError

PATIENCE = 1.0  # seconds in which the bytes of an evicted request are free
TOO_MANY = "too many bytes are in flight, of this client or of all; try again"


class MemoryAccount:
    """Bytes that are reserved, in all and by client, on one event loop.

    Those who wait leave a `spare` part of each limit to those who cannot wait. `max_waiting` are the requests of one
    client that may wait; `on_refusal` is called with a client that is turned away, and the one that has most bytes.
    """

    def __init__(
        self,
        most: int,
        most_per_client: int,
        *,
        spare: int = 0,
        max_waiting: int | None = None,
        on_refusal: Callable[[str, str], None] = lambda client, largest: None,
    ) -> None:
        self._most, self._most_per_client, self._spare = most, most_per_client, spare
        self._on_refusal = on_refusal
        self._total = 0
        self.given_back = 0  # bytes that large requests have given back so far
        self._by_client: dict[str, int] = {}
        self._queues: dict[str, deque[_Waiter]] = {}  # of clients that wait; of equals the first one's turn is next
        self._arriving: dict[str, dict[Reservation, Callable[[], None]]] = {}  # by client, the newest last
        self._leaving = 0  # bytes of evicted requests that are not free yet
        self._freed: set[asyncio.Future[None]] = set()  # of those who wait for such bytes

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
        self._note_refusal(client)
        raise ServeError(503, TOO_MANY, retry_after=1)

    def _note_refusal(self, client: str) -> None:
        self._on_refusal(client, max(self._by_client, key=self._by_client.__getitem__, default=client))

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
        if more < 0:
            while self._freed:
                _wake(self._freed.pop())
            if self._queues:
                self._serve_queues()

    def _make_room(self, client: str, more: int) -> bool:
        """Whether so many more will be free for a client, once evicted requests are gone; evicts some if need be.

        Only clients lose something that have more than this one would have then, the one with most first.
        """
        if not self.has_share(client, more):
            return False
        own = self._by_client.get(client, 0) + more
        while self._total - self._leaving + more > self._most:
            largest = max(self._arriving, key=lambda one: self._by_client.get(one, 0), default=client)
            if self._by_client.get(largest, 0) <= own:
                return False
            self._evict(next(reversed(self._arriving[largest])))
        return True

    def _evict(self, reservation: Reservation) -> None:
        """Refuse a request that is still arriving; its bytes count until they are free."""
        free_now = self._arriving[reservation.client][reservation]
        reservation._arrived()
        reservation.is_evicted = True
        self._leaving += reservation.size
        self._note_refusal(reservation.client)
        free_now()

    def _serve_queues(self) -> None:
        """Give to those who wait: first to the client that has least, of equals in turns, and to each in order.

        Who has no share left is passed over. Who only waits for room is not, or small ones would starve a large one.
        """
        while waiter := self._next_waiter():
            client, more = waiter.reservation.client, waiter.more
            if not (waiter.turn.done() or waiter.reservation.is_evicted):  # else it goes
                if not self._has_room(client, more):
                    self._make_room(client, more)
                    return
                waiter.reservation.resize(waiter.size)
                waiter.turn.set_result(None)
            queue = self._queues.pop(client)
            queue.popleft()
            if queue:
                self._queues[client] = queue  # behind all others

    def _next_waiter(self) -> _Waiter | None:
        """The first one of the client with fewest bytes, of those that have a share left."""
        firsts = (queue[0] for queue in self._queues.values())
        ready = (first for first in firsts if first.turn.done() or self.has_share(first.reservation.client, first.more))
        return min(ready, key=lambda first: self._by_client.get(first.reservation.client, 0), default=None)

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

    __slots__ = ("_account", "_is_closed", "client", "is_evicted", "size")

    def __init__(self, account: MemoryAccount, client: str) -> None:
        self._account, self._is_closed, self.is_evicted = account, False, False
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
        self._set(size)

    def claim_at_once(self, size: int) -> bool:
        """Reserve so many bytes, if there are as many; returns whether there were."""
        account, client, more = self._account, self.client, size - self.size
        own = account._by_client.get(client, 0) + more
        if account._total + more > account._most or own > account._most_per_client or more <= 0 or self.is_evicted:
            return False
        account._total += more
        account._by_client[client] = own
        self.size = size
        return True

    async def claim(self, size: int) -> None:
        """The same, but if all clients together have too many, room is made: who has most loses what still arrives."""
        more, account = size - self.size, self._account
        if more > 0 and not account._has_room(self.client, more):
            await self._wait_for_room(more)
        self.check()
        self._set(size)

    def check(self) -> None:
        """Raise `ServeError` 503 if the request had to leave for another one."""
        if self.is_evicted:
            raise ServeError(503, TOO_MANY, retry_after=1)

    async def _wait_for_room(self, more: int) -> None:
        account = self._account
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while account._make_room(self.client, more):
                    if account._has_room(self.client, more):
                        return
                    freed = asyncio.get_running_loop().create_future()
                    account._freed.add(freed)
                    await freed
        account.refuse(self.client)

    @contextmanager
    def arriving(self, evict: Callable[[], None]) -> Iterator[None]:
        """While the block lasts, the request may have to leave for that of a client that has less.

        Then `evict` is called, which frees what it can at once (and says so by `resize`), and makes the block end.
        """
        self._account._arriving.setdefault(self.client, {})[self] = evict
        try:
            yield
        finally:
            self._arrived()

    def _arrived(self) -> None:
        requests = self._account._arriving.get(self.client)
        if requests is not None and requests.pop(self, None) is not None and not requests:
            del self._account._arriving[self.client]

    def _set(self, size: int) -> None:
        if more := size - self.size:
            self.size = size
            if self.is_evicted:
                self._account._leaving += more
            self._account._change(self.client, more)

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
            self._arrived()
            self._set(0)


@dataclass(eq=False, frozen=True)
class _Waiter:
    """A reservation that is to grow to a size, and the future that its request waits for."""

    reservation: Reservation
    size: int
    turn: asyncio.Future[None]

    @property
    def more(self) -> int:
        """Bytes that must be free for it."""
        reservation = self.reservation
        return self.size - reservation.size + reservation._account._spare


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
