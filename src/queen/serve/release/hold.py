"""How long every answer is held back: longer than the server works on such a request, so that this does not show."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from queen.guard import Guard
from queen.serve.release.clock import ReleaseClock
from queen.serve.release.measure import WorkTime, measure_work
from queen.serve.settings import AUTO, Settings
from queen.serve.telemetry.log import log

HEADROOM = 1.5  # an answer is held back so many times as long as 99 of 100 take
TICKS = 4  # for one such time, if the server may choose: more would cost work, fewer would cost time
SHORTEST = 0.001  # seconds between two ticks
WINDOW_BATCHES = 1000  # batches between two looks at whether the server has become slower or faster
SECONDS, ENOUGH = 10.0, 100  # after which it may have become faster, if there were so many batches
LATE_SHARE = 20  # one of so many batches may be late: a busy machine delays some whatever the verdict
MOST = 16.0  # times as long as at the start


@dataclass
class Pace:
    """Batches since a moment, how many of them took longer than answers are held back, and how many a quarter of it."""

    since: float = 0.0
    batches: int = 0
    late: int = 0
    far_from_late: int = 0

    def note(self, seconds: float, limit: float) -> None:
        """Count one that took so long, where answers are held back for `limit` seconds."""
        self.batches += 1
        self.late += seconds > limit
        self.far_from_late += seconds < limit / 4

    @property
    def is_slow(self) -> bool:
        """Whether too many were late."""
        return self.late * LATE_SHARE > self.batches

    @property
    def is_fast(self) -> bool:
        """Whether nearly all were far from late."""
        return (self.batches - self.far_from_late) * LATE_SHARE <= self.batches


class Hold:
    """Lets answers go at the ticks of a clock, and lengthens or shortens the wait when the server's pace changes.

    The wait depends on a request's rows alone. It is doubled if one batch of twenty takes longer, and halved if a
    quarter would do, after a thousand batches at a time, so that no single request can be seen in it. Where there is
    little to do, it is also halved after a hundred batches in ten seconds, so that a busy hour is not felt for long.
    """

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self._settings, self._guard = settings, guard
        self._clock = ReleaseClock(0.0)
        self._work: WorkTime | None = None  # None while answers leave at once
        self._factor = HEADROOM
        self._window, self._lately = Pace(), Pace(monotonic())  # for both directions, and for the way down alone
        self.advice = ""  # one line for the operator

    async def start(self) -> None:
        """Find out how long requests take, if answers are to be held back, and say what it costs."""
        why_not = _why_not(self._settings.release_every, self._guard)
        if why_not:
            self.advice = f"answers leave at once, so that their time tells how they were judged: {why_not}"
            log("no release clock", why=why_not)
            return
        self._work = await measure_work(self._guard, uniform=self._settings.uniform)
        every = self._period(self._settings.release_every)
        self._clock = ReleaseClock(every)
        self._clock.start()
        period, hold, cost = map(_in_ms, (every, self.seconds(1), self.seconds(1) + every / 2 - self._work.median))
        log("release clock", period_ms=period, hold_ms=hold, p50_cost_ms=cost, p99_ms=_in_ms(self._work.one_row))
        self.advice = (
            f"answers leave every {period} ms, {hold} ms after the request or later, so that their time tells next to "
            f"nothing; this costs about {cost} ms in the median (--release-every 0: off)"
        )

    def _period(self, every: float | str) -> float:
        """Seconds between two ticks, as the operator says or as the work suggests."""
        return max(SHORTEST, round(self.seconds(1) / TICKS, 4)) if isinstance(every, str) else every

    def stop(self) -> None:
        """Release all answers; from now on none is held back."""
        self._clock.stop()

    def seconds(self, rows: int) -> float:
        """How long the answer to so many rows is held back, from the arrival of the request."""
        return 0.0 if self._work is None else self._factor * self._work.of(rows)

    @property
    def is_on(self) -> bool:
        """Whether answers are held back at all."""
        return self._work is not None

    async def wait(self, arrived: float, rows: int) -> None:
        """Wait until the answer to a request may leave that arrived at this moment of `time.monotonic`."""
        if self._work is not None:
            await self._clock.wait(arrived + self.seconds(rows))

    def note_batch(self, rows: int, seconds: float) -> None:
        """Count a batch that took the model and the ledger so long."""
        if self._work is None:
            return
        limit = self.seconds(rows)
        self._lately.note(seconds, limit)
        self._window.note(seconds, limit)
        if self._window.batches == WINDOW_BATCHES:
            self._adapt(self._work, self._window)
            self._window = Pace()
        elif self._lately.batches >= ENOUGH and monotonic() - self._lately.since >= SECONDS:
            if self._lately.is_fast:
                self._adapt(self._work, self._lately)
                self._window = Pace()
            self._lately = Pace(monotonic())

    def _adapt(self, work: WorkTime, pace: Pace) -> None:
        before = self._factor
        if pace.is_slow:
            self._factor = min(2 * before, MOST * HEADROOM)
        elif pace.is_fast:  # but batches are not all that a request waits for
            self._factor = max(before / 2, HEADROOM * work.median / work.one_row)
        if self._factor != before:
            why = f"{pace.late} of {pace.batches} batches were late"
            log("release clock", hold_ms=_in_ms(self.seconds(1)), why=why)
            self._lately = Pace(monotonic())


def _why_not(every: float | str, guard: Guard) -> str:
    """Why answers are not held back, in a few words; empty if they are."""
    if every == 0:
        return "release_every is 0"
    if every == AUTO and guard.policy.name != "sentinel":
        return f"policy {guard.policy.name} accuses nobody; --release-every SECONDS holds them back"
    return ""


def _in_ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
