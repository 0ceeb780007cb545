"""A value that takes long to read: read in the background, and again when it is too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

from queen.errors import QueenError

FRESH = 1.0  # seconds until a value is too old, if reading it was quick
REST = 10.0  # and if it was slow, this many times as long as reading took
PATIENCE = 1.0  # seconds that a caller waits for a new value before it gets the last one

T = TypeVar("T")


class BackgroundValue(Generic[T]):
    """The last value that `read` returned. It runs once at a time, however many callers wait for it."""

    def __init__(self, read: Callable[[], Awaitable[T]], *, patience: float | None = None) -> None:
        self._read, self._patience = read, PATIENCE if patience is None else patience
        self._value: T | None = None
        self._error: QueenError | None = None
        self._until = -inf
        self._task: asyncio.Task[None] | None = None
        self._generation = 0  # goes up when values that are still being read are no longer wanted

    async def get(self) -> T | None:
        """The value: a new one if the last one is too old and reading is quick, else the last, or None."""
        if self._task is None and time.monotonic() >= self._until:
            self._task = asyncio.create_task(self._renew(self._generation))
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=self._patience)
        if self._error is not None:
            raise self._error
        return self._value

    async def _renew(self, generation: int) -> None:
        began = time.monotonic()
        value, error = self._value, None
        try:
            value = await self._read()
        except QueenError as raised:
            error = raised
        if generation == self._generation:
            now = time.monotonic()
            self._value, self._error, self._task = value, error, None
            self._until = now if error else now + max(FRESH, REST * (now - began))

    def forget(self) -> None:
        """Read again next time, and drop a value that is being read now: the reading may have begun too early."""
        self._generation += 1
        self._until, self._task = -inf, None
