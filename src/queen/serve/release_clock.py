"""A clock at whose ticks alone answers leave, so that their time tells little about how they came about.

It runs in a thread of its own. A timer that is set when an answer is ready would pass on the moment at which that was,
and so would a timer of the event loop: it counts whole milliseconds from whatever has woken the loop last.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading


class ReleaseClock:
    """Ticks every `every` seconds between start and stop; with 0 there is no clock, and `wait` returns at once."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._next_tick: asyncio.Event | None = None  # None while there is no clock
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to tick for the coroutines of this event loop."""
        if self._every > 0:
            self._next_tick = asyncio.Event()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(loop,), name="queen-ticks", daemon=True).start()

    def stop(self) -> None:
        """Release everybody who waits; from now on nobody waits."""
        self._stopped.set()
        if self._next_tick is not None:
            self._next_tick.set()
            self._next_tick = None

    async def wait(self) -> None:
        """Wait for the next tick."""
        if self._next_tick is not None:
            await self._next_tick.wait()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone
            while not self._stopped.wait(self._every):
                loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        if self._next_tick is not None:
            self._next_tick.set()
            self._next_tick = asyncio.Event()
