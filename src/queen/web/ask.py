"""What an endpoint asks with."""

from __future__ import annotations

import asyncio

from starlette.requests import HTTPConnection

from queen.errors import QueenError
from queen.types import Reply
from queen.web.clients import Client, ClientHook, identify
from queen.web.errors import HttpNoAnswerError, no_answer
from queen.web.process import Asked, ProcessGuard


class Ask:
    """Asks the guard on behalf of the client of one request: `reply = await ask(x)`.

    Every question is recorded before it is answered, whatever becomes of the request afterwards. Where there is no
    answer a `NoAnswerError` is raised, which becomes a response by itself.
    """

    def __init__(
        self, guard: ProcessGuard, hook: ClientHook, connection: HTTPConnection, *, for_fastapi: bool = False
    ) -> None:
        self._guard, self._hook, self._connection, self._for_fastapi = guard, hook, connection, for_fastapi
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None

    async def client(self) -> Client:
        """Who asks; a `NoAnswerError` 401 where the request does not say."""
        if self._client is None:
            try:
                self._client = await identify(self._hook, self._connection)
            except QueenError as error:
                raise self._no_answer(error) from error
        return self._client

    async def __call__(self, x: Asked) -> Reply:
        """The answer to a batch (n, *input): (n, K) probabilities and verdicts."""
        client = await self.client()
        try:
            return await self._guard.answer(x, client)
        except QueenError as error:
            raise self._no_answer(error) from error

    def now(self, x: Asked) -> Reply:
        """The same for endpoints that are not `async`, which run in a thread and wait there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(self(x), self._loop).result()
        raise RuntimeError("ask.now(x) would stop the event loop: use `await ask(x)` in `async def`")

    def _no_answer(self, error: QueenError) -> QueenError:
        told = no_answer(error)
        return HttpNoAnswerError(told) if self._for_fastapi else told
