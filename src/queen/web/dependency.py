"""`guarded(...)`: what FastAPI's endpoints depend on to ask the guard."""

# Without `from __future__ import annotations`: FastAPI reads the annotation of `__call__`, and could not resolve text.

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import PathLike
from typing import Any

from starlette.requests import HTTPConnection

from queen.guard import Guard
from queen.web.ask import Ask
from queen.web.clients import ClientHook
from queen.web.errors import EXCEPTION_HANDLERS
from queen.web.process import MAX_ROWS, LedgerSource, ProcessGuard


class Guarded:
    """A dependency that gives endpoints an `Ask`; `guarded` makes it.

    Give the application its `lifespan` and `exception_handlers`: then the guard is opened when the application starts
    and closed when it ends, and errors have the bodies of the server. Without them the guard is opened by the first
    question, and errors have FastAPI's own body, `{"detail": "..."}`, with the same statuses and headers.
    """

    def __init__(self, guard: ProcessGuard, hook: ClientHook) -> None:
        self._guard, self._hook = guard, hook

    async def __call__(self, connection: HTTPConnection) -> Ask:
        """What one request asks with; 401 unless the request says whose it is."""
        ask = Ask(self._guard, self._hook, connection, for_fastapi=True)
        await ask.client()
        return ask

    def open(self) -> Guard:
        """The guard of this process."""
        return self._guard.open()

    def close(self) -> None:
        """Wait for the last answers and close the ledger."""
        self._guard.close()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Open the guard when an application starts, and close it when it ends."""
        await asyncio.to_thread(self.open)
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    @property
    def exception_handlers(self) -> dict[Any, Any]:
        """What turns a `NoAnswerError` into a response."""
        return EXCEPTION_HANDLERS


def guarded(
    guard: Guard | str | PathLike[str],
    *,
    client: ClientHook,
    ledger: LedgerSource | None = None,
    threads: int = 4,
    max_rows: int = MAX_ROWS,
    weak: bool = False,
    **options: Any,
) -> Guarded:
    """A dependency for FastAPI's endpoints, to be named in `Depends(...)`, that gives them an `Ask`.

    `guard` is the folder of a bundle, with `ledger` the address where clients are remembered, which all workers share,
    or a function that opens it; or it is a guard, with the ledger that it has. `client` says who asks. At most
    `threads` questions are worked on at a time, each of at most `max_rows` rows. A sentinel that would catch nobody is
    refused unless `weak`. `options` are those of `queen.load`: model, device, policy, limits, ...
    """
    return Guarded(ProcessGuard(guard, ledger=ledger, threads=threads, max_rows=max_rows, weak=weak, **options), client)
