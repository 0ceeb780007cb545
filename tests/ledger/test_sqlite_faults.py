"""A ledger's file that is moved, deleted or damaged while it is in use: an error by name, never an answer."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from queen.errors import LedgerError
from queen.ledger import SqliteLedger
from queen.options import Limits

LIMITS = Limits(radius=0.1, threshold=0.5)


def judge(ledger: SqliteLedger, client: str = "alice") -> str:
    return ledger.judge(client, np.array([0]), np.array([[0.1, 0.2]]), LIMITS).letters


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_a_file_that_was_moved_away_takes_no_record_and_one_put_back_does(file: Path) -> None:
    ledger = SqliteLedger(file)
    judge(ledger)
    away = file.rename(file.with_name("away.sqlite"))
    for act in (lambda: judge(ledger), ledger.check, lambda: ledger.allow("alice", "boss")):
        with pytest.raises(LedgerError, match="moved or deleted"):
            act()
    away.rename(file)
    ledger.check()
    judge(ledger)
    ledger.close()


def test_a_file_that_was_deleted_and_made_anew_is_not_ours(file: Path) -> None:
    ledger = SqliteLedger(file)
    judge(ledger)
    for path in file.parent.glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(LedgerError, match="moved or deleted"):
        judge(ledger)
    SqliteLedger(file).close()
    with pytest.raises(LedgerError, match="moved or deleted"):
        judge(ledger)
    ledger.close()
    anew = SqliteLedger(file)
    assert list(anew.clients()) == []
    anew.close()


def test_a_relative_path_is_found_from_elsewhere(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    ledger = SqliteLedger(file.name)
    monkeypatch.chdir("/")
    judge(ledger)
    assert ledger.standing("alice").queries == 1
    ledger.close()


def test_a_ledger_without_a_file_works() -> None:
    ledger = SqliteLedger(":memory:")
    judge(ledger)
    ledger.check()
    ledger.close()


DAMAGE = {
    "wealth is cut": "UPDATE scope SET wealth = x'010203'",
    "wealth is text": "UPDATE scope SET wealth = 'much'",
    "budget is no JSON": "UPDATE scope SET budget = '{'",
    "budget is of another kind": """UPDATE scope SET budget = '{"extra_answers": -1}'""",
    "budget has other fields": """UPDATE scope SET budget = '{"x": 1}'""",
    "an area is text": "UPDATE record SET area = 'large'",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_an_error_by_name(file: Path, damage: str) -> None:
    ledger = SqliteLedger(file)
    judge(ledger)
    other = sqlite3.connect(file)
    other.execute(damage)
    other.commit()
    for act in (lambda: judge(ledger), lambda: ledger.standing("alice"), ledger.standings):
        with pytest.raises(LedgerError, match=r"'alice'.* damaged"):
            act()
    judge(ledger, "bob")
    other.execute("DELETE FROM record")
    other.execute("UPDATE scope SET wealth = x'', budget = NULL")
    other.commit()
    other.close()
    assert judge(ledger)
    ledger.close()
