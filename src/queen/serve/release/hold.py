"""How long every answer is held back: longer than the server works on such a request, so that this does not show."""

from __future__ import annotations

from queen.guard import Guard
from queen.serve.release.clock import ReleaseClock
from queen.serve.release.measure import WorkTime, measure_work
from queen.serve.settings import AUTO, Settings
from queen.serve.telemetry.log import log

HEADROOM = 1.5  # an answer is held back so many times as long as 99 of 100 take
TICKS = 4  # for one such time, if the server may choose: more would cost work, fewer would cost time
SHORTEST = 0.001  # seconds between two ticks
WINDOW_BATCHES = 1000  # batches between two looks at whether the server has become slower or faster
LATE_BATCHES = WINDOW_BATCHES // 20  # of them that may be late: a busy machine delays some whatever the verdict
MOST = 16.0  # times as long as at the start


class Hold:
    """Lets answers go at the ticks of a clock, and lengthens or shortens the wait when the server's pace changes.

    The wait depends on a request's rows alone. It is doubled if one batch of twenty takes longer, and halved if a
    quarter would do, after a thousand batches at a time, so that no single request can be seen in it.
    """

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self._settings, self._guard = settings, guard
        self._clock = ReleaseClock(0.0)
        self._work: WorkTime | None = None  # None while answers leave at once
        self._factor = HEADROOM
        self._batches = self._late = self._far_from_late = 0
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

    async def wait(self, arrived: float, rows: int) -> None:
        """Wait until the answer to a request may leave that arrived at this moment of `time.monotonic`."""
        if self._work is not None:
            await self._clock.wait(arrived + self.seconds(rows))

    def note_batch(self, rows: int, seconds: float) -> None:
        """Count a batch that took the model and the ledger so long."""
        if self._work is None:
            return
        limit = self.seconds(rows)
        self._batches += 1
        self._late += seconds > limit
        self._far_from_late += seconds < limit / 4
        if self._batches == WINDOW_BATCHES:
            self._adapt(self._work)
            self._batches = self._late = self._far_from_late = 0

    def _adapt(self, work: WorkTime) -> None:
        before = self._factor
        if self._late > LATE_BATCHES:
            self._factor = min(2 * before, MOST * HEADROOM)
        elif WINDOW_BATCHES - self._far_from_late <= LATE_BATCHES:  # but batches are not all that a request waits for
            self._factor = max(before / 2, HEADROOM * work.median / work.one_row)
        if self._factor != before:
            log(
                "release clock",
                hold_ms=_in_ms(self.seconds(1)),
                why=f"{self._late} of {WINDOW_BATCHES} batches were late",
            )


def _why_not(every: float | str, guard: Guard) -> str:
    """Why answers are not held back, in a few words; empty if they are."""
    if every == 0:
        return "release_every is 0"
    if every == AUTO and guard.policy.name != "sentinel":
        return f"policy {guard.policy.name} accuses nobody; --release-every SECONDS holds them back"
    return ""


def _in_ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
