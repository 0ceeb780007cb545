"""A clock that is behind its ledger is shown, and accepted only by order."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from queen.ledger import SqliteLedger
from queen.options import Limits
from tests.support.commands import as_json, mistake, run
from tests.support.times import TwoClocks

FUTURE = 4_000_000_000  # 2096: the true clock is behind


def used(path, now):
    with closing(SqliteLedger(path, clock=TwoClocks(now).make())) as ledger:
        ledger.judge("alice", [0], np.zeros((1, 2)), Limits(threshold="0.2/day"))


def test_a_ledger_that_was_used_later_is_opened_by_order_alone(tmp_path):
    path = tmp_path / "ledger.sqlite"
    used(path, FUTURE)
    assert f"queen ledger clock '{path}' --accept" in mistake("clients", "--ledger", path).replace("\n", "")
    before = as_json("ledger", "clock", path)
    assert (before["used_until"], before["accepted"]) == (FUTURE, False)
    assert before["now"] < FUTURE
    assert "behind" in mistake("clients", "--ledger", path)  # to look at it changes nothing
    assert "the clock is accepted" in run("ledger", "clock", path, "--accept", "--actor", "olga").output
    (event,) = as_json("alarms", "--all", "--ledger", path)
    assert (event["what"], event["actor"]) == ("clock", "olga")
    (alice,) = as_json("clients", "--ledger", path)
    assert before["now"] <= alice["class_usage"]["0"]["at"] < FUTURE


def test_the_time_of_a_healthy_ledger_is_shown(tmp_path):
    used(tmp_path / "ledger.sqlite", 1_700_000_000)
    shown = " ".join(run("ledger", "clock", tmp_path / "ledger.sqlite").output.split())
    assert "were used until 2023-11-14 22:13:20 UTC" in shown
    assert "no ledger" in mistake("ledger", "clock", tmp_path / "none.sqlite")
