"""Only a loss that a server has noticed can be accepted, unless one insists."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from queen.cli.ledger import check_expected
from queen.errors import OptionError
from queen.ledger import SqliteLedger
from queen.ledger.open import witness_in
from queen.ledger.witness import Witness
from tests.support.commands import mistake, run

LOST, OTHER = "5f0c63f2a94b1d7e", "0" * 16


def remember(home: Path, url: str, name: str) -> None:
    witness = Witness(name, witness_in(home, url))
    witness.note(LOST, {"0": 1})
    witness.save()


def test_an_id_that_no_witness_expects_is_refused(tmp_path):
    url, home = f"sqlite:///{tmp_path}/ledger.sqlite", tmp_path / "home"
    with closing(SqliteLedger(tmp_path / "ledger.sqlite")) as ledger:
        healthy = ledger.fact("id")
    assert "no server has remembered it" in mistake("ledger", "accept", OTHER, "--ledger", url, "--home", home)
    remember(home, url, str((tmp_path / "ledger.sqlite").resolve()))
    assert f"known there as {LOST}" in mistake("ledger", "accept", OTHER, "--ledger", url, "--home", home)
    with closing(SqliteLedger(tmp_path / "ledger.sqlite")) as ledger:
        assert (ledger.fact("id"), ledger.events()) == (healthy, [])
    assert "the loss is accepted" in run("ledger", "accept", LOST, "--ledger", url, "--home", home).output
    assert "the loss is accepted" in run("ledger", "accept", OTHER, "--ledger", url, "--home", home, "--force").output


def test_what_cannot_be_an_id_makes_no_ledger(tmp_path):
    told = mistake("ledger", "accept", "ID", "--ledger", tmp_path / "ledger.sqlite", "--home", tmp_path, "--force")
    assert told.startswith("expected the id that the error names")
    assert list(tmp_path.iterdir()) == []


def test_the_witness_of_another_ledger_does_not_count(tmp_path):
    url = "redis://me:word@10.0.0.5:6379/0"
    remember(tmp_path, url, "redis://10.0.0.5:6379/0")
    (tmp_path / "ledger-damaged.witness").write_text("{")
    check_expected(LOST, url, tmp_path)
    for other in ("redis://10.0.0.5:6379/1", "ledger.sqlite"):
        with pytest.raises(OptionError, match="no server has remembered it"):
            check_expected(LOST, other, tmp_path)
