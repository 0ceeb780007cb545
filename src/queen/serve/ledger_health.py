"""Whether the ledger records, has lost nothing and is still this bundle's; one that failed is tried until it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from queen.errors import BindingError, LedgerError, LostStateError
from queen.ledger import Ledger
from queen.serve.telemetry.log import log
from queen.serve.telemetry.metrics import Metrics

CHECK_EVERY = 0.5  # seconds between two looks at the ledger


class LedgerHealth:
    """Knows whether the last use of the ledger succeeded; `on_change` is called when that changes, in any thread.

    `bind` raises `BindingError` once the ledger was taken over by another bundle; it is called at every check.
    """

    def __init__(
        self,
        ledger: Ledger,
        metrics: Metrics,
        pool: Executor,
        on_change: Callable[[], None] = lambda: None,
        bind: Callable[[], object] = lambda: None,
    ) -> None:
        self._ledger, self._metrics, self._pool, self._on_change, self._bind = ledger, metrics, pool, on_change, bind
        self.works = True
        self._logged = ""  # the last error in the log

    def report(self, error: LedgerError | None) -> None:
        """Note how a use of the ledger ended: with an error, or well."""
        worked, self.works = self.works, error is None
        if error is not None:
            self._metrics.ledger_error()
            self._log(error)
        if self.works == worked:
            return
        self._on_change()
        if error is None:
            self._logged = ""
            log("ledger works again")

    def _log(self, error: LedgerError) -> None:
        """Log the first error of a ledger that worked, and then what only an operator can help with, once each."""
        if not self._logged or (isinstance(error, LostStateError | BindingError) and str(error) != self._logged):
            self._logged = str(error)
            log("ledger failed", level="error", error=self._logged)

    async def watch(self) -> None:
        """Notice for ever that the ledger has lost state, was taken over or has recovered, even when no request comes.

        One that works is only looked at, which writes nothing.
        """
        while True:
            await asyncio.sleep(CHECK_EVERY)
            failed = not self.works
            try:
                await asyncio.get_running_loop().run_in_executor(self._pool, self._look, failed)
            except LedgerError as error:
                if not failed:
                    self.report(error)
                else:
                    self._log(error)
            else:
                if failed:
                    self.report(None)

    def _look(self, failed: bool) -> None:
        """Raise `LedgerError` if a ledger that `failed` still does, has lost state, or is another bundle's."""
        (self._ledger.check if failed else self._ledger.verify)()
        self._bind()
