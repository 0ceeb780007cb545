"""What the server counts, for Prometheus: how much, how fast, which verdicts; never who."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

from queen import __version__
from queen.errors import UpstreamFailure
from queen.ledger.words import NOTICES
from queen.types import Verdict

Protocol = Literal["rest", "grpc"]
Kind = Literal["client", "group"]
Outcome = Literal["sent", "failed"]
PROTOCOLS: tuple[Protocol, ...] = ("rest", "grpc")
KINDS: tuple[Kind, ...] = ("client", "group")
OUTCOMES: tuple[Outcome, ...] = ("sent", "failed")
STATUSES = frozenset(int(status) for status in HTTPStatus)

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
FINE = (  # for one batch: narrow enough to see that a new version is slower by a third or a half
    0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03,
    0.05, 0.07, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counters, gauges and histograms in a registry of their own; any thread may count.

    Labels come from short closed lists, so that no request, whatever it holds, can add time series without end.
    """

    def __init__(self, *, model: str = "", policy: str = "") -> None:
        registry = self._registry = CollectorRegistry()
        self._labels: dict[str, str] = {}  # on every figure
        requests = Counter("queen_requests", "Requests answered.", ("protocol", "status"), registry=registry)
        seconds = Histogram(
            "queen_request_seconds", "From request to answer.", ("protocol",), buckets=SECONDS, registry=registry
        )
        self._requests, self._counted = requests, {(p, 200): requests.labels(p, "200") for p in PROTOCOLS}
        self._seconds = {protocol: seconds.labels(protocol) for protocol in PROTOCOLS}
        self._rows = Counter("queen_rows", "Queries judged; a request has one or more.", registry=registry)
        verdicts = Counter("queen_verdicts", "Queries by verdict.", ("verdict",), registry=registry)
        self._verdicts = tuple((v.value, verdicts.labels(v.name.lower())) for v in Verdict)
        self._alarmed = Counter("queen_alarmed_rows", "Queries of accused clients.", registry=registry)
        self._refused = Counter("queen_refused_rows", "Queries that got no answer.", registry=registry)
        alarms = Counter("queen_alarms", "Accusations.", ("kind",), registry=registry)
        self._alarms = {kind: alarms.labels(kind) for kind in KINDS}
        budgets = Counter("queen_budgets", "Budgets that are low or spent.", ("what", "kind"), registry=registry)
        self._budgets = {
            (what, kind): budgets.labels(what, kind) for what in NOTICES if what != "alarm" for kind in KINDS
        }
        self._batch = Histogram("queen_batch_rows", "Queries in a batch.", buckets=ROWS, registry=registry)
        self._model = Histogram("queen_model_seconds", "The model on a batch.", buckets=FINE, registry=registry)
        self._ledger = Histogram(
            "queen_ledger_seconds", "Judging and recording a batch.", buckets=FINE, registry=registry
        )
        self._queue = Gauge("queen_queue_rows", "Queries that wait for the model.", registry=registry)
        self._ready = Gauge("queen_ready", "1 while the server is ready to answer.", registry=registry)
        self._errors = Counter(
            "queen_ledger_errors",
            "Batches and checks that the ledger failed.",
            registry=registry,
        )
        self._recording = Gauge("queen_recording", "1 while the query log takes queries.", registry=registry)
        self._lost = Counter("queen_record_dropped_rows", "Queries missing in the query log.", registry=registry)
        self._unnamed_proxy = Counter(
            "queen_unnamed_proxy_requests",
            "Requests that were forwarded, by a peer that is no --trusted-proxy.",
            registry=registry,
        )
        webhook = Counter("queen_webhook", "Notices for the webhook.", ("outcome",), registry=registry)
        self._webhook = {outcome: webhook.labels(outcome) for outcome in OUTCOMES}
        self._upstream: dict[str, Counter] = {}  # by kind of failure, where there is an upstream
        build = Gauge(
            "queen_build_info", "What runs here; always 1.", ("version", "model", "policy"), registry=registry
        )
        build.labels(__version__, model, policy).set(1)

    def observe_request(self, protocol: Protocol, status: int, seconds: float) -> None:
        """Count one answered request; a status that HTTP does not know counts as "other"."""
        counter = self._counted.get((protocol, status))
        if counter is None:
            known = str(status) if status in STATUSES else "other"
            counter = self._requests.labels(protocol, known)
            if known != "other":
                self._counted[protocol, status] = counter
        counter.inc()
        self._seconds[protocol].observe(seconds)

    def observe_batch(
        self, rows: int, model_seconds: float, ledger_seconds: float, letters: str, alarmed: int, refused: int
    ) -> None:
        """Count one judged batch: its rows, how long model and ledger took, and one verdict letter per row."""
        self._rows.inc(rows)
        self._batch.observe(rows)
        self._model.observe(model_seconds)
        self._ledger.observe(ledger_seconds)
        for letter, counter in self._verdicts:
            if count := letters.count(letter):
                counter.inc(count)
        if alarmed:
            self._alarmed.inc(alarmed)
        if refused:
            self._refused.inc(refused)

    def notice(self, what: str, kind: Kind) -> None:
        """Count an accusation of a client or a group, or that a budget of it is low or spent."""
        (self._alarms[kind] if what == "alarm" else self._budgets[what, kind]).inc()

    def ledger_error(self) -> None:
        """Count a failed use of the ledger: a batch, which was not answered, or a check."""
        self._errors.inc()

    def set_ready(self, ready: bool) -> None:
        """Set whether the server answers."""
        self._ready.set(ready)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Ask this, whenever figures are read, how many rows wait."""
        self._queue.set_function(waiting)

    def set_recording(self, recording: bool) -> None:
        """Set whether queries are written to the query log."""
        self._recording.set(recording)

    def record_dropped(self, rows: int) -> None:
        """Count rows that the query log could not take."""
        self._lost.inc(rows)

    def webhook(self, outcome: Outcome) -> None:
        """Count a notice that was sent, or refused for good."""
        self._webhook[outcome].inc()

    def unnamed_proxy(self) -> None:
        """Count a request that says it was forwarded, by a peer that nobody has named as a proxy."""
        self._unnamed_proxy.inc()

    def watch_upstream(self) -> None:
        """Count failures of the upstream, too."""
        errors = Counter(
            "queen_upstream_errors", "Questions that the upstream did not answer.", ("kind",), registry=self._registry
        )
        self._upstream = {kind: errors.labels(kind) for kind in get_args(UpstreamFailure)}

    def upstream_error(self, kind: UpstreamFailure) -> None:
        """Count a question, a client's or a check, that the upstream gave no usable answer to."""
        self._upstream[kind].inc()

    def label(self, **labels: str) -> None:
        """Put labels on every figure, for example the name of the replica that counts."""
        self._labels |= labels

    def render(self) -> tuple[bytes, str]:
        """All figures as text, and its content type."""
        return generate_latest(self), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """All figures, for Prometheus's client."""
        for metric in self._registry.collect():
            metric.samples = [sample._replace(labels={**sample.labels, **self._labels}) for sample in metric.samples]
            yield metric
