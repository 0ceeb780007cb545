"""`queen ledger`: an operator lets another bundle take a ledger over, or accepts that records are lost."""

from __future__ import annotations

from contextlib import closing

import pytest

from queen import load
from queen.ledger import open_ledger
from queen.serve.lease import acquire
from tests.support.commands import as_json, mistake, run
from tests.support.serving import digits, retrained_bundle, small_bundle


@pytest.fixture
def ledger(tmp_path) -> str:
    """The file of a ledger that the digits have used."""
    path = str(tmp_path / "ledger.sqlite")
    with closing(open_ledger(path)) as opened:
        load(small_bundle(), ledger=opened).answer(digits()[:20], client="alice")
    return path


def test_a_bundle_takes_over_and_the_log_says_who_did_it(ledger):
    text = run("ledger", "rebind", retrained_bundle(), "--ledger", ledger, "--actor", "olga").output
    assert "now for bundle" in text
    assert "forgotten" in text
    with closing(open_ledger(ledger)) as opened:
        standing = opened.standing("alice")
        assert (standing.queries, standing.coverage) == (20, {})
        assert [(event.what, event.actor) for event in opened.events()] == [("rebind", "olga")]
        assert not load(retrained_bundle(), ledger=opened).bind()
    assert "rebind" in run("alarms", "--ledger", ledger, "--all").output


def test_a_bundle_that_has_the_ledger_already_changes_nothing(ledger):
    result = as_json("ledger", "rebind", small_bundle(), "--ledger", ledger)
    assert (result["changed"], result["forgot_coverage"], len(result["accepted"])) == (False, False, 1)


def test_another_radius_keeps_what_was_counted(ledger):
    result = as_json("ledger", "rebind", small_bundle(), "--ledger", ledger, "--radius", "0.3")
    assert (result["changed"], result["forgot_coverage"]) == (True, False)
    assert result["accepted"][0]["radius"] == 0.3
    with closing(open_ledger(ledger)) as opened:
        assert opened.standing("alice").coverage


def test_a_ledger_that_a_server_uses_or_nobody_has_made_is_refused(ledger, tmp_path):
    with acquire(ledger, "http://127.0.0.1:1"):
        assert "stop it first" in mistake("ledger", "rebind", retrained_bundle(), "--ledger", ledger)
    assert "no ledger" in mistake("ledger", "rebind", small_bundle(), "--ledger", str(tmp_path / "none.sqlite"))
    assert "no option 'prefix'" in mistake("ledger", "rebind", small_bundle(), "--ledger", ledger, "--prefix", "shop")


def test_the_environment_may_name_the_ledger(ledger, monkeypatch):
    monkeypatch.setenv("QUEEN_LEDGER", ledger)
    assert as_json("ledger", "rebind", retrained_bundle())["changed"]
    assert "the loss is accepted" in run("ledger", "accept", "0" * 16, "--force").output


def test_a_loss_is_accepted_and_the_log_says_who_did_it(ledger):
    text = run("ledger", "accept", "0" * 16, "--ledger", ledger, "--actor", "olga", "--force").output
    assert "the ledger 0000000000000000 has the id" in text
    assert "no file" not in text
    with closing(open_ledger(ledger)) as opened:
        assert f"has the id {opened.fact('id')} from now on" in text
        assert [(event.what, event.actor) for event in opened.events()] == [("accept", "olga")]
    assert "the id that the error names" in mistake("ledger", "accept", "x", "--ledger", ledger, "--force")
    assert "no option 'prefix'" in mistake(
        "ledger", "accept", "0" * 16, "--ledger", ledger, "--prefix", "shop", "--force"
    )


def test_where_the_file_is_gone_a_new_one_is_made_and_said_so(tmp_path):
    gone = tmp_path / "gone.sqlite"
    assert "there was no file" in run("ledger", "accept", "0" * 16, "--ledger", f"sqlite:///{gone}", "--force").output
    assert gone.is_file()
