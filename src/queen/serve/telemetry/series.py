"""Counters of each of the last seconds, for the dashboard, in a fixed amount of memory."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping
from math import frexp
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

SECONDS = 900  # a quarter of an hour
COUNTS = ("requests", "rows", "A", "B", "C", "D", "alarmed", "refused", "errors")
WIDTH, ERRORS = len(COUNTS), COUNTS.index("errors")

# Latencies are counted in bins whose edges grow by a quarter of an octave, from a quarter of a millisecond to a minute.
STEPS, OCTAVES, SMALLEST = 4, 18, 2.0**-12
BINS, LARGEST = STEPS * OCTAVES, SMALLEST * 2.0**OCTAVES
MIDDLES = SMALLEST * 2.0 ** (np.arange(BINS) // STEPS) * (1 + (np.arange(BINS) % STEPS + 0.5) / STEPS)


class Series:
    """Counts of requests, rows, verdicts and latencies, second by second; the oldest second makes room for the newest.

    It knows of no second before it was made: a server that was down is not one that nobody asked. Requests and batches
    may be counted by different threads.
    """

    def __init__(self, *, seconds: int = SECONDS, clock: Callable[[], float] = time.time) -> None:
        self.seconds = seconds
        self._clock = clock
        self._lock = Lock()
        self._since = int(clock())
        self._stamps = array("q", bytes(8 * seconds))
        self._counts = array("q", bytes(8 * seconds * WIDTH))
        self._bins = array("q", bytes(8 * seconds * BINS))

    def request(self, seconds: float, *, error: bool = False) -> None:
        """Count one finished request and how long it took."""
        latency_bin = _bin(seconds)
        with self._lock:
            slot = self._slot()
            self._counts[slot * WIDTH] += 1
            self._counts[slot * WIDTH + ERRORS] += error
            self._bins[slot * BINS + latency_bin] += 1

    def batch(self, rows: int, letters: Mapping[str, int], *, alarmed: int = 0, refused: int = 0) -> None:
        """Count the rows of one batch, and how many of them got each verdict letter."""
        with self._lock:
            at = self._slot() * WIDTH
            for i, count in enumerate((rows, *(letters.get(letter, 0) for letter in "ABCD"), alarmed, refused), at + 1):
                self._counts[i] += count

    def _slot(self) -> int:
        """The place of this second in the ring; what it held one round ago is cleared."""
        second = int(self._clock())
        self._since = min(self._since, second)  # the clock may have been set back
        slot = second % self.seconds
        if self._stamps[slot] != second:
            self._stamps[slot] = second
            self._counts[slot * WIDTH : (slot + 1) * WIDTH] = array("q", bytes(8 * WIDTH))
            self._bins[slot * BINS : (slot + 1) * BINS] = array("q", bytes(8 * BINS))
        return slot

    def read(self, seconds: int | None = None) -> dict[str, Any]:
        """The last whole seconds, oldest first: `time`, one list for each of `COUNTS`, and p50 and p99 in ms.

        Counts are None for a second before this series was made. Latencies are exact to within an eighth, and None for
        a second without requests.
        """
        now = int(self._clock())
        times = np.arange(now - min(seconds or self.seconds, self.seconds - 1), now)  # this second is not over yet
        slots = times % self.seconds
        with self._lock:
            alive = np.frombuffer(self._stamps, np.int64)[slots] == times
            counts = np.frombuffer(self._counts, np.int64).reshape(-1, WIDTH)[slots] * alive[:, None]
            bins = np.frombuffer(self._bins, np.int64).reshape(-1, BINS)[slots] * alive[:, None]
            unknown = int((times < self._since).sum())
        named = {
            name: [None] * unknown + column.tolist()[unknown:] for name, column in zip(COUNTS, counts.T, strict=True)
        }
        return {"time": times.tolist(), **named, "p50": _quantile(bins, 0.5), "p99": _quantile(bins, 0.99)}


def _bin(seconds: float) -> int:
    """The bin of a latency; those below or above all bins are counted in the first or the last."""
    if not seconds > SMALLEST:
        return 0
    if seconds >= LARGEST:
        return BINS - 1
    mantissa, exponent = frexp(seconds / SMALLEST)  # in [.5, 1) times a power of two
    return (exponent - 1) * STEPS + int((2.0 * mantissa - 1.0) * STEPS)


def _quantile(bins: NDArray[np.int64], share: float) -> list[float | None]:
    """The quantile of every second (row) in ms, as the middle of its bin; None for a second without requests."""
    total = bins.sum(1)
    milliseconds = MIDDLES[(bins.cumsum(1) < np.ceil(share * total)[:, None]).sum(1).clip(max=BINS - 1)] * 1e3
    return [round(float(ms), 3) if n else None for ms, n in zip(milliseconds, total, strict=True)]
