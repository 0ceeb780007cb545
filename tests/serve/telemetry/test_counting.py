"""Requests and batches are counted alike in the metrics and in the dashboard's series."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

from queen.ledger import Judgement
from queen.serve.telemetry import log
from queen.serve.telemetry.counting import RequestCounter
from queen.serve.telemetry.metrics import Metrics
from queen.serve.telemetry.series import Series
from queen.serve.types import Caller, Query
from queen.types import Reply
from tests.support.metrics import values


class Counted:
    """A counter, and what its metrics and its series say."""

    def __init__(self, *, access_log: bool = False) -> None:
        self.now = 1000.0
        self.metrics, self._series = Metrics(), Series(clock=lambda: self.now)
        self.counter = RequestCounter(self.metrics, self._series, access_log=access_log)

    def total(self, name: str) -> float:
        return values(self.metrics)[name]

    def second(self) -> dict[str, int]:
        self.now += 1
        return {name: column[-1] for name, column in self._series.read(1).items() if name != "since"}


def test_a_query_is_in_both_and_other_requests_are_in_the_metrics_alone():
    counted = Counted()
    counted.counter.request("rest", 200, 0.01, is_query=True)
    counted.counter.request("rest", 429, 0.01, is_query=True)
    counted.counter.request("rest", 404, 0.01, is_query=False)
    assert counted.total("queen_requests_total{protocol=rest,status=404}") == 1
    assert counted.total("queen_request_seconds_count{protocol=rest}") == 3
    second = counted.second()
    assert (second["requests"], second["errors"]) == (2, 1)


def test_a_batch_is_in_both():
    counted = Counted()
    alarmed, refused = np.array([True, True, False]), np.array([False, True, False])
    judgement = Judgement("AAC", np.zeros(3, bool), alarmed, np.zeros(3, bool))
    reply = Reply(torch.zeros(3, 2), judgement.verdicts, alarmed, refused, ~alarmed & ~refused)
    counted.counter.batch(judgement, reply, model_seconds=0.002, ledger_seconds=0.001)
    assert counted.total("queen_rows_total") == 3
    assert counted.total("queen_alarmed_rows_total") == 2
    assert counted.total("queen_refused_rows_total") == 1
    second = counted.second()
    assert [second[name] for name in ("rows", "A", "B", "C", "D", "alarmed", "refused")] == [3, 2, 0, 1, 0, 2, 1]


@pytest.mark.parametrize("access_log", [True, False])
def test_the_access_log_has_a_line_per_request_where_asked(access_log, capsys):
    log.setup("info", json=True)
    try:
        counter = Counted(access_log=access_log).counter
        query, caller = Query(torch.zeros(4, 2), 4, "seven"), Caller("alice", key="0123")
        counter.request("grpc", 200, 0.01, is_query=True, query=query, caller=caller)
        counter.request("grpc", 401, 0.01, is_query=True)
    finally:
        root = logging.getLogger()
        for handler in [one for one in root.handlers if isinstance(one, log.Handler)]:
            root.removeHandler(handler)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    facts = [(line["id"], line["status"], line["rows"], line["key_id"]) for line in lines]
    assert facts == ([("seven", 200, 4, "0123"), ("", 401, 0, "")] if access_log else [])
