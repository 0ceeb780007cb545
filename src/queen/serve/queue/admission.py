"""The way of a request to the queue and of its answer back: reading, parsing and writing are shared fairly too.

Nothing of a client's body is read while its part of the queue is full, so its requests wait in the network and not
here. Bodies that take a while to parse are parsed one at a time for each client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from queen.serve.limits.memory import MemoryAccount
from queen.serve.queue.request_queue import RequestQueue
from queen.serve.types import LARGE_BYTES, MANY_NUMBERS, Query, ServeError

Written = TypeVar("Written")
MAX_PARSES = 16  # large requests that may wait for a thread, except that every client may have one
MAX_CLIENT_PARSES = 8  # those of one client
MEDIUM_BYTES = 1 << 14  # bytes of a request that takes a good part of a millisecond to parse
WRITING = 100  # bytes that each of them takes meanwhile
PATIENCE = 1.0  # seconds, about, that a request waits for room before it is refused


@dataclass
class ClientParses:
    """Who of one client's requests may be parsed now, how many are or want to be, and how many of them are large."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: int = 0
    large: int = 0


class Admission:
    """Lets requests in, each in its client's turn; threads of `pool` parse large ones and write large answers.

    It alone says who may parse, and how many; `memory` how many bytes that may take. `on_refusal` is called with a
    client whose large request is turned away.
    """

    def __init__(
        self,
        queue: RequestQueue,
        pool: Executor,
        memory: MemoryAccount,
        *,
        on_refusal: Callable[[str], None] = lambda client: None,
    ) -> None:
        self._queue, self._pool, self._memory, self._on_refusal = queue, pool, memory, on_refusal
        self._parses: dict[str, ClientParses] = {}  # of clients with requests that are not small
        self._large = 0  # requests of all clients that are being parsed in threads, or wait for it

    def has_room(self, client: str) -> bool:
        """Whether there is room in the queue for a request of a client, so that it need not wait for `admit`."""
        return self._queue.has_room(client)

    async def admit(self, client: str) -> None:
        """Wait for room in the queue before a request is read; if there is none after a while, `ServeError` 503."""
        await _patiently(self._queue.check_room, client)

    async def parse(self, client: str, read: Callable[[], Query], size: int, memory: int = 0) -> Query:
        """A request of `size` bytes, parsed by `read`: at once, in the client's turn, or if it is large in a thread.

        A large one waits for the bytes of `memory` that parsing it takes, after its turn has come: so a client that
        waits for its own requests occupies none of them.

        Raises `ServeError` 503 before it is parsed if the client has no room in the queue any more, or if too many
        large requests wait for a thread and one of them is the client's own.
        """
        if size < MEDIUM_BYTES:
            self._queue.check_room(client)
            return read()
        is_large = size >= LARGE_BYTES
        if is_large:
            await self._admit_large(client)
        async with self._turn(client, is_large=is_large):
            self._queue.check_room(client)
            if not is_large:
                return read()
            with await self._memory.wait(client, memory):
                return await asyncio.get_running_loop().run_in_executor(self._pool, read)

    async def write(self, client: str, write: Callable[[], Written], numbers: int) -> Written:
        """An answer of so many numbers, written by `write`: at once, or in a thread when it has the memory it takes."""
        if numbers < MANY_NUMBERS:
            return write()
        with await self._memory.wait(client, min(WRITING * numbers, self._memory.largest)):
            return await asyncio.get_running_loop().run_in_executor(self._pool, write)

    async def _admit_large(self, client: str) -> None:
        try:
            await _patiently(self._check_large, client)
        except ServeError:
            self._on_refusal(client)
            raise

    def _check_large(self, client: str) -> None:
        parses = self._parses.get(client)
        if parses is None or not parses.large:  # its first one is never refused because of others
            return
        if parses.large >= MAX_CLIENT_PARSES:
            message = (
                f"this client has {parses.large} large requests waiting and may have {MAX_CLIENT_PARSES}; try again"
            )
            raise ServeError(503, message, retry_after=1)
        if self._large >= MAX_PARSES:
            raise ServeError(503, "too many large requests at once; try again", retry_after=1)

    @asynccontextmanager
    async def _turn(self, client: str, *, is_large: bool) -> AsyncIterator[None]:
        """Wait until none of the client's requests is parsed; others of it wait until the event loop has gone round."""
        parses = self._parses.setdefault(client, ClientParses())
        parses.requests += 1
        parses.large += is_large
        self._large += is_large
        try:
            async with parses.turn:
                yield
                await asyncio.sleep(0)
        finally:
            parses.requests -= 1
            parses.large -= is_large
            self._large -= is_large
            if not parses.requests:
                del self._parses[client]


async def _patiently(check: Callable[[str], None], client: str) -> None:
    """Make a check that raises `ServeError`, and if it does, once more after a while.

    Refusals come late so that a flood costs little: each of its connections is refused once in that time, and not all
    at the same moment.
    """
    try:
        check(client)
    except ServeError:
        await asyncio.sleep(PATIENCE * random.uniform(0.5, 1.5))  # noqa: S311  (no secret)
        check(client)
