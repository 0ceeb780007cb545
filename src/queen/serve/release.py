"""A clock at whose ticks alone answers leave, so that their time tells little about how they came about.

It runs in a thread, by itself. A timer that is set when an answer is ready would pass on the moment at which that was,
and so would a timer of the event loop: it counts whole milliseconds from whatever has woken the loop last.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Ticks:
    """A tick every so many seconds between start and stop; with 0 there is no clock, and nobody waits."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._tick: asyncio.Event | None = None  # the next one; None while there is no clock
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to tick for those who wait on this event loop."""
        if self._every > 0:
            self._tick = asyncio.Event()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(loop,), name="queen-ticks", daemon=True).start()

    def stop(self) -> None:
        """Let everybody go, from now on at once."""
        self._stopped.set()
        if self._tick is not None:
            self._tick.set()
            self._tick = None

    async def wait(self) -> None:
        """Until the next tick."""
        if self._tick is not None:
            await self._tick.wait()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone
            while not self._stopped.wait(self._every):
                loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if self._tick is not None:
            self._tick.set()
            self._tick = asyncio.Event()
