"""Gives memory back to the system that large requests have used: the C library keeps what was freed for later.

Without it the server would stay as large as it ever was, and memory of one kind (REST, gRPC, parsing) would add to that
of another. Where the C library is not GNU's, nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

EVERY = 1.0  # seconds between two looks


class Trimmer:
    """Trims the heap once per second, if large requests have given back at least `enough` bytes since the last time."""

    def __init__(self, given_back: Callable[[], int], enough: int) -> None:
        self._given_back, self._enough = given_back, enough
        self._at = 0  # bytes given back until the last time
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    async def watch(self) -> None:
        """Look for ever."""
        while self._trim is not None:
            await asyncio.sleep(EVERY)
            if (now := self._given_back()) - self._at >= self._enough:
                self._at = now
                await asyncio.to_thread(self._trim, 0)
