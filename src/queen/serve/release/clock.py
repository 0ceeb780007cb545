"""A clock at whose ticks alone answers leave, so that their time tells little about how they came about.

It runs in a thread of its own. A timer that is set when an answer is ready would pass on the moment at which that was,
and so would a timer of the event loop: it counts whole milliseconds from whatever has woken the loop last.

Ticks alone would not do: who asks a little before a tick sees whether the answer was ready in time. So an answer waits
for a tick that was fixed when its request came, and only one that is ready later than that takes the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from functools import partial
from math import ceil, floor, inf


class ReleaseClock:
    """Ticks at whole multiples of `every` seconds after its start, while somebody waits; with 0 there is no clock."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._origin = 0.0  # the moment of tick 0
        self._leaving: dict[int, asyncio.Event] | None = None  # by tick who waits for it; None while there is no clock
        self._earliest = inf  # of the ticks that somebody waits for
        self._wanted, self._stopped = threading.Event(), threading.Event()

    def start(self) -> None:
        """Begin to tick for the coroutines of this event loop."""
        if self._every > 0:
            self._leaving, self._origin = {}, time.monotonic()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(loop,), name="queen-ticks", daemon=True).start()

    def stop(self) -> None:
        """Release everybody who waits; from now on nobody waits."""
        self._stopped.set()
        self._wanted.set()
        for event in (self._leaving or {}).values():
            event.set()
        self._leaving = None

    async def wait(self, earliest: float) -> None:
        """Wait for the first tick at or after `earliest`, a moment of `time.monotonic`, or for the next one now."""
        if self._leaving is None:
            return
        tick = self.tick_for(earliest, time.monotonic())
        event = self._leaving.get(tick)
        if event is None:
            event = self._leaving[tick] = asyncio.Event()
            self._earliest = min(self._earliest, tick)
            self._wanted.set()
        await event.wait()

    def tick_for(self, earliest: float, now: float) -> int:
        """The number of the first tick that is neither before `earliest` nor over by `now`."""
        return max(ceil((earliest - self._origin) / self._every), self._next_tick(now))

    def _next_tick(self, now: float) -> int:
        return floor((now - self._origin) / self._every) + 1

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tick while somebody waits, and otherwise sleep; either way the ticks lie on the same grid."""
        with contextlib.suppress(RuntimeError):  # the loop is gone
            while self._wanted.wait():
                now = time.monotonic()
                tick = self._next_tick(now)
                if self._stopped.wait(self._origin + tick * self._every - now):
                    return
                if self._earliest <= tick:
                    loop.call_soon_threadsafe(partial(self._release, tick))

    def _release(self, tick: int) -> None:
        """Let everybody go who waits for this tick or an earlier one."""
        if self._leaving is None:
            return
        for number in [number for number in self._leaving if number <= tick]:
            self._leaving.pop(number).set()
        self._earliest = min(self._leaving, default=inf)
        if not self._leaving:
            self._wanted.clear()
