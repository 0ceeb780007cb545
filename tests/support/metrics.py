"""Prometheus figures as plain numbers."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from queen.serve.telemetry.metrics import Metrics


def families(metrics: Metrics) -> dict[str, Metric]:
    """All but the times of creation, which the client library adds by itself."""
    parsed = text_string_to_metric_families(metrics.render()[0].decode())
    return {family.name: family for family in parsed if not family.name.endswith("_created")}


def values(metrics: Metrics) -> dict[str, float]:
    """All samples, as `name{label=value}`."""
    samples = {}
    for family in families(metrics).values():
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples
