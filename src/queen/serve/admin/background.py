"""Something slow to read, read in the background and kept for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

from queen.errors import QueenError

FRESH = 1.0  # seconds that a quick reading is kept
REST = 10.0  # a slow one is kept for this many times as long as it took
PATIENCE = 1.0  # seconds that whoever asks waits for a new reading before it gets the last one

T = TypeVar("T")


class Recent(Generic[T]):
    """The last reading of something; one reading at a time, however many ask."""

    def __init__(self, read: Callable[[], Awaitable[T]], *, patience: float | None = None) -> None:
        self._read, self._patience = read, PATIENCE if patience is None else patience
        self._value: T | None = None
        self._error: QueenError | None = None
        self._until = -inf
        self._task: asyncio.Task[None] | None = None
        self._round = 0

    async def get(self) -> T | None:
        """A reading, new if the last one is too old and another does not take long; None if there is none yet."""
        if self._task is None and time.monotonic() >= self._until:
            self._task = asyncio.create_task(self._renew(self._round))
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=self._patience)
        if self._error is not None:
            raise self._error
        return self._value

    async def _renew(self, mine: int) -> None:
        began = time.monotonic()
        value, error = self._value, None
        try:
            value = await self._read()
        except QueenError as raised:
            error = raised
        if mine == self._round:
            now = time.monotonic()
            self._value, self._error, self._task = value, error, None
            self._until = now if error else now + max(FRESH, REST * (now - began))

    def forget(self) -> None:
        """Read again next time: what is being read may be from before."""
        self._round += 1
        self._until, self._task = -inf, None
