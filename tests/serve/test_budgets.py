"""The scenario of qa/31-budgets, small: who runs out of budget is seen and told, and no notice is lost."""

from __future__ import annotations

import pytest

from qa.serving.budgets import comes_to_its_end, survives
from qa.serving.scenario import failed

pytestmark = pytest.mark.slow


def test_the_end_of_a_budget_is_no_surprise_and_refused_rows_cost_nothing(tmp_path):
    assert failed(comes_to_its_end(tmp_path, f"sqlite:///{tmp_path / 'ledger.sqlite'}", 20)) == []


def test_a_kill_between_alarm_and_delivery_loses_nothing(tmp_path):
    assert failed(survives(tmp_path, f"sqlite:///{tmp_path / 'ledger.sqlite'}", 1)) == []


@pytest.mark.long
def test_a_server_that_notes_and_remembers_nothing_is_found_out(tmp_path):
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    wrong = {check.name for check in failed(survives(tmp_path, ledger, 1, module="qa.broken.forgetful", patience=1.0))}
    assert wrong == {"sqlite: alarms that were never delivered"}
