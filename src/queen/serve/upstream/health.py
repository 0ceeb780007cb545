"""Whether the upstream still runs the network that the bundle was made for; while it does not, it is not asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Executor

from queen.errors import UpstreamError
from queen.guard import Guard
from queen.serve.settings import Settings
from queen.serve.telemetry.log import log
from queen.serve.telemetry.metrics import Metrics
from queen.serve.upstream.model import UpstreamModel
from queen.serve.upstream.settings import GuardSettings

CHECK_EVERY = 5.0  # seconds between two looks at an upstream that works
SHORTEST = 0.05  # seconds between two looks in any case
RETRY_EVERY = 0.5  # seconds between two looks at an upstream that failed
REJECTED_EVERY = 1.0  # seconds between two looks because of requests that it does not take
CLOSING = ("unreachable", "late", "other_model")  # what says at once that others would not be answered either


class UpstreamHealth:
    """Asks the probe every `every` seconds, and at once when a question failed.

    One request that the upstream cannot answer says nothing about others: only the probe decides whether the server is
    ready, and an upstream that cannot be reached. `on_change` is called when that changes, in any thread.
    """

    def __init__(
        self,
        model: UpstreamModel,
        metrics: Metrics,
        pool: Executor,
        on_change: Callable[[], None] = lambda: None,
        *,
        every: float = CHECK_EVERY,
    ) -> None:
        self._model, self._metrics, self._pool, self._on_change, self._every = model, metrics, pool, on_change, every
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._logged = ""  # the kind of the last error in the log
        self._looked = 0.0  # by time.monotonic()
        model.on_error = self.report
        metrics.watch_upstream()

    @property
    def address(self) -> str:
        """Where the upstream is, for operators."""
        return str(self._model.address)

    @property
    def works(self) -> bool:
        """Whether the upstream may be asked."""
        return not self._model.is_closed

    @property
    def advice(self) -> list[str]:
        """What operators should know, a sentence each."""
        if self.works:
            return []
        return [f"nobody is answered: the upstream {self.address} is not asked until it passes its check (see the log)"]

    def report(self, error: UpstreamError) -> None:
        """Note that a question failed; called in the model's thread."""
        self._metrics.upstream_error(error.kind)
        if error.kind == "closed":  # which is known
            return
        if error.kind in CLOSING:
            self._set(error)
        elif error.may_be_the_request and time.monotonic() - self._looked < REJECTED_EVERY:
            return  # or whoever sends such requests makes it look all the time
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def watch(self) -> None:
        """Look at the upstream for ever."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._wait()
            self._wake.clear()
            await self._loop.run_in_executor(self._pool, self._check)

    async def _wait(self) -> None:
        """Until it is time to look again; never so short that requests which fail make it look all the time."""
        await asyncio.sleep(SHORTEST if self.works else RETRY_EVERY)
        if self.works:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()

    def _check(self) -> None:
        self._looked = time.monotonic()
        try:
            self._model.check()
        except UpstreamError as error:
            self._metrics.upstream_error(error.kind)
            self._set(error)
        except Exception as error:  # whatever it was, nobody may be answered
            self._set(UpstreamError(f"looking at it failed: {error!r}", "unusable"))
        else:
            self._set(None)

    def _set(self, error: UpstreamError | None) -> None:
        """Close the upstream after an error, open it after a probe that passed; log what is new."""
        worked, self._model.is_closed = self.works, error is not None
        if error is not None and error.kind != self._logged:
            log("upstream failed", level="error", upstream=self.address, kind=error.kind, error=str(error))
            self._logged = error.kind
        if error is None and not worked:
            log("upstream works again", upstream=self.address)
            self._logged = ""
        if worked != (error is None):
            self._on_change()


def make_health(
    guard: Guard, settings: Settings, metrics: Metrics, pool: Executor, on_change: Callable[[], None]
) -> UpstreamHealth | None:
    """What looks after the guard's network, if that runs on another server."""
    model = guard.bundle.split.model
    if not isinstance(model, UpstreamModel):
        return None
    every = settings.upstream_check if isinstance(settings, GuardSettings) else CHECK_EVERY
    return UpstreamHealth(model, metrics, pool, on_change, every=every)
