"""`GuardMiddleware`: the same for Starlette and any other ASGI application."""

from __future__ import annotations

import asyncio
from os import PathLike
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queen.guard import Guard
from queen.web.ask import Ask
from queen.web.clients import ClientHook
from queen.web.errors import NoAnswerError
from queen.web.process import MAX_ROWS, LedgerSource, ProcessGuard


class GuardMiddleware:
    """Puts an `Ask` into every request's state: `reply = await request.state.ask(x)`; parameters as of `guarded`.

    Who asks is found out first, but pages that ask nothing need no client. Where there is no answer the response says
    why, unless it has begun before: then the connection breaks.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard | str | PathLike[str],
        *,
        client: ClientHook,
        ledger: LedgerSource | None = None,
        threads: int = 4,
        max_rows: int = MAX_ROWS,
        weak: bool = False,
        **options: Any,
    ) -> None:
        self.app = app
        self._guard = ProcessGuard(guard, ledger=ledger, threads=threads, max_rows=max_rows, weak=weak, **options)
        self._hook = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or see the application through its life."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        state = dict(scope.get("state", {}))  # of this request alone, even where a server gives all the same one
        scope = {**scope, "state": state}
        state["ask"] = ask = Ask(self._guard, self._hook, HTTPConnection(scope))
        await ask.prepare()
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except NoAnswerError as error:
            if has_started:
                raise
            if scope["type"] == "websocket":
                code, reason = error.closing
                await send({"type": "websocket.close", "code": code, "reason": reason})
            else:
                await _respond(send, error)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the guard before the application starts, and close it after the application has ended."""
        messages = [await receive()]
        try:
            await asyncio.to_thread(self._guard.open)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        async def close_and_send(message: Message) -> None:
            if message["type"] != "lifespan.startup.complete":
                await asyncio.to_thread(self._guard.close)
            await send(message)

        await self.app(scope, replay, close_and_send)


async def _respond(send: Send, error: NoAnswerError) -> None:
    headers = {**error.response_headers, "content-length": str(len(error.body))}
    encoded = [(name.encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": error.body})
