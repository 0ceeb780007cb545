"""What an endpoint asks with."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketState

from queen.errors import QueenError
from queen.types import Reply
from queen.web.clients import Client, ClientHook, check_found
from queen.web.errors import HttpNoAnswerError, SocketNoAnswerError, no_answer
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
        self._wrong: Exception | None = None  # what `prepare` ran into
        self._hook_waits = False  # whether the hook returned something to wait for

    async def prepare(self) -> None:
        """Find out who asks before the endpoint runs; what is wrong with it is told when something is asked.

        A hook may need a thread for its look into a database. Endpoints that wait in `now` hold threads, and enough of
        them would wait for their hooks for ever.
        """
        try:
            await self.client()
        except Exception as error:
            self._wrong = error

    async def client(self) -> Client:
        """Who asks; a `NoAnswerError` 401 where the request does not say."""
        if self._client is None:
            try:
                found = self._hook(self._connection)
                self._hook_waits = inspect.isawaitable(found)
                self._client = check_found(await found if inspect.isawaitable(found) else found)
            except QueenError as error:
                raise self._no_answer(error) from error
        return self._client

    async def __call__(self, x: Asked) -> Reply[Any]:
        """The answer to a batch (n, *input): verdicts, and probabilities (n, K), an array if x is one."""
        client = await self.client()
        try:
            return await self._guard.answer(x, client)
        except QueenError as error:
            raise self._no_answer(error) from error

    def now(self, x: Asked) -> Reply[Any]:
        """The same for endpoints that are not `async`, which run in a thread and wait there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(self._from_thread(x), self._loop).result()
        raise RuntimeError("ask.now(x) would stop the event loop: use `await ask(x)` in `async def`")

    async def _from_thread(self, x: Asked) -> Reply[Any]:
        if self._client is None and self._hook_waits and self._wrong is not None:
            raise self._wrong  # the hook may need a thread, and this endpoint may hold the last one
        return await self(x)

    def _no_answer(self, error: QueenError) -> QueenError:
        told, connection = no_answer(error), self._connection
        if not self._for_fastapi:
            return told
        if isinstance(connection, WebSocket) and connection.application_state is WebSocketState.CONNECTED:
            return SocketNoAnswerError(told)
        return HttpNoAnswerError(told)
