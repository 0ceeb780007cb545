"""A ledger's file that is moved, deleted or damaged while it is in use: an error by name, never an answer."""

from __future__ import annotations

import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from queen.errors import LedgerError
from queen.ledger import SqliteLedger
from queen.options import Limits
from tests.reference.watch import Rules
from tests.support.queries import FOREIGN, picture
from tests.support.queries import judge as judge_rows

LIMITS = Limits(radius=0.1, threshold=0.5)


def judge(ledger: SqliteLedger, client: str = "alice") -> str:
    return ledger.judge(client, np.array([0]), np.array([[0.1, 0.2]]), LIMITS).letters


def watch(ledger: SqliteLedger) -> str:
    """Judge a query with a bet."""
    return judge_rows(ledger, Rules(LIMITS, bar=1e9), picture(0, (0.1, 0.2), client="alice", bet=FOREIGN)).letters


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


@pytest.mark.parametrize("name", ["", "nowhere/ledger.sqlite", "text/ledger.sqlite"])
def test_a_path_that_cannot_be_a_ledger_asks_about_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("no folder")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one sentence is enough
        with pytest.raises(LedgerError, match="is it a file, in a folder that is there and may be written"):
            SqliteLedger(tmp_path / name)


def test_a_ledger_without_a_file_works() -> None:
    ledger = SqliteLedger(":memory:")
    judge(ledger)
    ledger.check()
    assert ledger.standing("alice").queries == 1
    ledger.close()


DAMAGE = {
    "purses are cut": "UPDATE winnings SET purses = x'010203'",
    "purses are none": "UPDATE winnings SET purses = x''",
    "purses are text": "UPDATE winnings SET purses = 'much'",
    "clocks are cut": "UPDATE winnings SET clocks = x'010203'",
    "counts are none": "UPDATE counts SET numbers = x''",
    "counts are cut": "UPDATE counts SET numbers = x'0101000203'",
    "counts are a number": "UPDATE counts SET numbers = 5",
    "counts are of no test": "INSERT INTO counts SELECT id + (1 << 28), numbers FROM counts",
    "a picture is cut": "UPDATE picture SET sketch = x'00'",
    "a digest is text": "UPDATE answered SET digest = 'x'",
    "budget is no JSON": "UPDATE scope SET budget = '{'",
    "budget is of another kind": """UPDATE scope SET budget = '{"extra_answers": -1}'""",
    "budget has other fields": """UPDATE scope SET budget = '{"x": 1}'""",
    "homes are no JSON": "UPDATE scope SET homes = '{'",
    "homes are a list": "UPDATE scope SET homes = '[1]'",
    "homes of a kind are a number": """UPDATE scope SET homes = '{"team": 1}'""",
    "an area is text": "UPDATE record SET area = 'large'",
}
ONLY_TO_JUDGE = ("counts", "picture", "answered")  # tables that nobody's standing is read from


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_an_error_by_name(file: Path, damage: str) -> None:
    ledger = SqliteLedger(file)
    whole = file.with_name("whole.sqlite")
    watch(ledger)
    with closing(sqlite3.connect(whole)) as copy, closing(sqlite3.connect(file)) as other:
        other.backup(copy)
        other.execute(damage)
        other.commit()
    acts = [lambda: watch(ledger), lambda: judge(ledger), lambda: ledger.allow("alice", "boss")]
    if damage.split()[1] not in ONLY_TO_JUDGE and damage.split()[2] not in ONLY_TO_JUDGE:
        acts += [lambda: ledger.standing("alice"), ledger.standings]
    for act in acts:
        with pytest.raises(LedgerError, match=r"'alice'.* damaged"):
            act()
    judge(ledger, "bob")
    with closing(sqlite3.connect(whole)) as copy, closing(sqlite3.connect(file)) as other:
        copy.backup(other)
    assert watch(ledger)
    ledger.close()
