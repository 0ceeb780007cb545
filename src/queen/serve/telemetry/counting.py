"""Requests and batches, counted once for everybody who shows them: Prometheus, the dashboard and the access log."""

from __future__ import annotations

from collections import Counter

from queen.ledger import Judgement
from queen.serve.telemetry.log import access
from queen.serve.telemetry.metrics import Metrics, Protocol
from queen.serve.telemetry.series import Series
from queen.serve.types import Caller, Query
from queen.types import Reply


class RequestCounter:
    """Counts finished requests and judged batches."""

    def __init__(self, metrics: Metrics, series: Series, *, access_log: bool) -> None:
        self._metrics, self._series, self._access_log = metrics, series, access_log

    def request(
        self,
        protocol: Protocol,
        status: int,
        seconds: float,
        *,
        is_query: bool,
        query: Query | None = None,
        caller: Caller | None = None,
    ) -> None:
        """Count one finished request; `query` and `caller` are for the access log, as far as they are known."""
        self._metrics.observe_request(protocol, status, seconds)
        if is_query:
            self._series.request(seconds, error=status >= 400)
        if self._access_log:
            name, rows = (query.id, query.rows) if query else ("", 0)
            key = caller.key if caller else ""
            access(id=name, protocol=protocol, status=status, rows=rows, seconds=seconds, key=key)

    def batch(self, judgement: Judgement, reply: Reply, *, model_seconds: float, ledger_seconds: float) -> None:
        """Count one batch whose answers have left, and how long the model and the ledger took for it."""
        letters, alarmed, refused = judgement.letters, int(reply.alarmed.sum()), int(reply.refused.sum())
        self._metrics.observe_batch(
            len(letters), model_seconds, ledger_seconds, letters, alarmed=alarmed, refused=refused
        )
        self._series.batch(len(letters), Counter(letters), alarmed=alarmed, refused=refused)
