"""Keys that are made or revoked while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from queen.serve.access.auth import Authenticator, UnknownKeyError
from queen.serve.access.budgets import KeysWithBudgets
from queen.serve.telemetry.log import log
from queen.serve.types import Caller, ServeError

REFRESH_EVERY = 0.5  # seconds between looks at the keys


class KeyWatcher:
    """Says who asks, from keys that it keeps up to date.

    The keys are read in a thread of `pool`, so that the event loop never waits for a file or for Redis. `on_change` is
    called when the keys cannot be read any more, and when they can be read again.
    """

    def __init__(
        self, auth: Authenticator, keys: KeysWithBudgets, pool: Executor, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._auth, self._keys, self._pool, self._on_change = auth, keys, pool, on_change
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        """Whether the keys could be read the last time."""
        return self._auth.failure is None

    async def watch(self) -> None:
        """Refresh the keys for ever."""
        while True:
            await asyncio.sleep(REFRESH_EVERY)
            try:
                await self.refresh()
            except Exception as error:  # whatever it was, the next refresh may succeed
                log("looking at keys failed", level="error", error=str(error))

    async def refresh(self) -> None:
        """Take over new and revoked keys; callers at the same time share one reading of the keys."""
        task = self._refreshing
        if task is None or task.done():
            task = self._refreshing = asyncio.create_task(self._refresh())
        await asyncio.shield(task)

    async def caller(self, authorization: str | None, peer: str | None, forwarded: str | None) -> Caller:
        """Who asks, or `ServeError` 401 or 503; a key made a moment ago is looked up once more."""
        try:
            caller = self._auth.caller(authorization, peer, forwarded)
        except UnknownKeyError as error:
            if not error.retry and not self._is_refreshing():
                raise
            await self.refresh()
            caller = self._auth.caller(authorization, peer, forwarded)
        if caller.client in self._keys.pending:
            raise ServeError(503, "the budget of this key is not in force yet; try again", retry_after=1)
        return caller

    async def admin(self, authorization: str | None, peer: str | None, forwarded: str | None) -> Caller:
        """Who asks, if it may operate the server; else `ServeError` 401, 403 or 503."""
        await self.caller(authorization, peer, forwarded)  # which also finds a key made a moment ago
        return self._auth.admin(authorization, peer, forwarded)

    def _is_refreshing(self) -> bool:
        return self._refreshing is not None and not self._refreshing.done()

    async def _refresh(self) -> None:
        worked = self.works
        await asyncio.get_running_loop().run_in_executor(self._pool, self._read)
        if self.works != worked:
            self._on_change()

    def _read(self) -> None:
        self._auth.refresh_once()
        if self._keys.pending:
            self._keys.settle()
