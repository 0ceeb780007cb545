"""The server's figures: exact names and counts, nobody's name, and cheap enough for every request."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import REGISTRY

import queen
from queen.serve.telemetry.metrics import KINDS, OUTCOMES, PROTOCOLS, STATUSES, Metrics
from tests.support.metrics import families, values

TYPES = {
    "queen_requests": "counter",
    "queen_rows": "counter",
    "queen_verdicts": "counter",
    "queen_alarmed_rows": "counter",
    "queen_refused_rows": "counter",
    "queen_alarms": "counter",
    "queen_budgets": "counter",
    "queen_request_seconds": "histogram",
    "queen_batch_rows": "histogram",
    "queen_model_seconds": "histogram",
    "queen_ledger_seconds": "histogram",
    "queen_queue_rows": "gauge",
    "queen_ready": "gauge",
    "queen_ledger_errors": "counter",
    "queen_recording": "gauge",
    "queen_record_dropped_rows": "counter",
    "queen_unnamed_proxy_requests": "counter",
    "queen_webhook": "counter",
    "queen_build_info": "gauge",
}


def test_the_names_and_types_are_those_that_dashboards_rely_on():
    metrics = Metrics()
    assert {name: family.type for name, family in families(metrics).items()} == TYPES
    assert all(family.documentation for family in families(metrics).values())
    assert metrics.render()[1].startswith("text/plain")


def test_everything_starts_at_nought_and_is_there_from_the_start():
    figures = values(Metrics())
    build = [name for name in figures if name.startswith("queen_build_info")]
    assert [figures.pop(name) for name in build] == [1]
    assert set(figures.values()) == {0}
    for verdict in ("outside", "spent", "fresh", "repeat"):
        assert f"queen_verdicts_total{{verdict={verdict}}}" in figures
    assert "queen_requests_total{protocol=grpc,status=200}" in figures
    assert {f"queen_alarms_total{{kind={kind}}}" for kind in ("client", "group")} <= set(figures)


def test_requests_are_counted_by_protocol_and_status():
    metrics = Metrics()
    for status in (200, 200, 503):
        metrics.observe_request("rest", status, 0.003)
    metrics.observe_request("grpc", 200, 30.0)
    figures = values(metrics)
    assert figures["queen_requests_total{protocol=rest,status=200}"] == 2
    assert figures["queen_requests_total{protocol=rest,status=503}"] == 1
    assert figures["queen_requests_total{protocol=grpc,status=200}"] == 1
    assert figures["queen_request_seconds_count{protocol=rest}"] == 3
    assert figures["queen_request_seconds_sum{protocol=rest}"] == pytest.approx(0.009)
    assert figures["queen_request_seconds_bucket{le=0.002,protocol=rest}"] == 0
    assert figures["queen_request_seconds_bucket{le=0.005,protocol=rest}"] == 3
    assert figures["queen_request_seconds_bucket{le=5.0,protocol=grpc}"] == 0
    assert figures["queen_request_seconds_bucket{le=+Inf,protocol=grpc}"] == 1


def test_batches_are_counted_row_by_row():
    metrics = Metrics()
    metrics.observe_batch(7, 0.01, 0.002, "AABCCCD", 2, 1)
    metrics.observe_batch(1, 0.03, 0.004, "D", 0, 0)
    figures = values(metrics)
    assert figures["queen_rows_total"] == 8
    expected = {"outside": 2, "spent": 1, "fresh": 3, "repeat": 2}
    assert {v: figures[f"queen_verdicts_total{{verdict={v}}}"] for v in expected} == expected
    assert (figures["queen_alarmed_rows_total"], figures["queen_refused_rows_total"]) == (2, 1)
    assert (figures["queen_batch_rows_count"], figures["queen_batch_rows_sum"]) == (2, 8)
    assert figures["queen_batch_rows_bucket{le=4.0}"] == 1
    assert figures["queen_model_seconds_sum"] == pytest.approx(0.04)
    assert figures["queen_ledger_seconds_sum"] == pytest.approx(0.006)
    assert figures["queen_model_seconds_count"] == figures["queen_ledger_seconds_count"] == 2


def test_the_rest_is_counted_too():
    metrics = Metrics(model="digits", policy="sentinel")
    for what, kind in (("alarm", "client"), ("alarm", "group"), ("alarm", "group"), ("budget spent", "client")):
        metrics.notice(what, kind)
    metrics.ledger_error()
    metrics.set_ready(True)
    waiting = [17]
    metrics.watch_queue(lambda: waiting[0])
    metrics.set_recording(True)
    metrics.record_dropped(5)
    metrics.webhook("sent")
    figures = values(metrics)
    assert (figures["queen_alarms_total{kind=client}"], figures["queen_alarms_total{kind=group}"]) == (1, 2)
    assert figures["queen_budgets_total{kind=client,what=budget spent}"] == 1
    assert figures["queen_budgets_total{kind=group,what=class low}"] == 0
    assert (figures["queen_ledger_errors_total"], figures["queen_ready"], figures["queen_queue_rows"]) == (1, 1, 17)
    assert (figures["queen_recording"], figures["queen_record_dropped_rows_total"]) == (1, 5)
    assert figures["queen_webhook_total{outcome=sent}"] == 1
    assert figures[f"queen_build_info{{model=digits,policy=sentinel,version={queen.__version__}}}"] == 1
    metrics.set_ready(False)
    waiting[0] = 0
    assert (values(metrics)["queen_ready"], values(metrics)["queen_queue_rows"]) == (0, 0)


def test_no_traffic_can_add_time_series_without_end():
    metrics = Metrics()
    for status in range(-100, 1500):  # 1,600 statuses, most of which there are not
        for protocol in PROTOCOLS:
            metrics.observe_request(protocol, status, 0.001)
    for letters in ("ABCD", "", "ZZZ", "\n{}\"'"):
        metrics.observe_batch(4, 0.1, 0.1, letters, 1, 1)
    names = set(values(metrics))
    requests = [name for name in names if name.startswith("queen_requests_total")]
    assert len(requests) == len(PROTOCOLS) * (len(STATUSES) + 1)
    assert len(names) < 300
    assert values(metrics)["queen_requests_total{protocol=rest,status=other}"] == 1600 - len(STATUSES)
    assert len([n for n in names if n.startswith("queen_verdicts_total")]) == 4


def test_no_label_could_hold_a_client():
    labels = {key for family in families(Metrics()).values() for s in family.samples for key in s.labels}
    assert labels == {"protocol", "status", "verdict", "kind", "what", "outcome", "le", "version", "model", "policy"}
    assert (KINDS, OUTCOMES) == (("client", "group"), ("sent", "failed"))
    with pytest.raises(KeyError):
        Metrics().notice("alarm", "alice")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        Metrics().webhook("alice")  # type: ignore[arg-type]


def test_two_servers_in_one_process_do_not_share_figures():
    one, other = Metrics(), Metrics()
    one.observe_request("rest", 200, 0.001)
    assert values(other)["queen_requests_total{protocol=rest,status=200}"] == 0
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("queen")]


def test_replicas_can_be_told_apart_by_a_label_on_every_figure():
    metrics = Metrics()
    metrics.observe_request("rest", 200, 0.001)
    metrics.label(replica="2")
    samples = [sample for family in families(metrics).values() for sample in family.samples]
    assert {sample.labels["replica"] for sample in samples} == {"2"}
    assert values(metrics)["queen_requests_total{protocol=rest,replica=2,status=200}"] == 1


def test_threads_lose_no_count():
    metrics = Metrics()

    def work() -> None:
        for _ in range(2000):
            metrics.observe_request("grpc", 429, 0.001)
            metrics.observe_batch(2, 0.001, 0.001, "AC", 1, 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = values(metrics)
    assert figures["queen_requests_total{protocol=grpc,status=429}"] == 8000
    assert figures["queen_rows_total"] == 16000
    assert figures["queen_verdicts_total{verdict=outside}"] == 8000
    assert figures["queen_request_seconds_count{protocol=grpc}"] == 8000
