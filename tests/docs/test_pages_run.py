"""What the documents tell a reader to type does what they say."""

from __future__ import annotations

import ast
import sqlite3
from contextlib import closing

import pytest
import torch

import queen
from queen.ledger import SqliteLedger
from queen.options import Limits
from tests.support import guards
from tests.support.page_runner import PageRunner, blocks
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
SESSION = ("start.md", "operate.md", "query-log.md", "privacy.md")  # one goes on where the other ended
ELSEWHERE = {  # pages whose Python is run by other tests, or why it is not
    "apps.md": "tests/web/test_example.py",
    "attacks.md": "tests/contracts/test_docs_attacks.py",
    "data.md": "needs archives of published images; tests/bench/datasets reads such",
    "models.md": "models of your own; tests/models has one of each kind",
    "policies.md": "a price takes minutes; tests/fit/test_price.py measures small ones",
    "sentinel.md": "below, with names that it takes for granted",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, and none of the variables that queen reads."""
    for name in ("QUEEN_HOME", "QUEEN_LEDGER", "QUEEN_SERVER", "QUEEN_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_every_page_is_run_somewhere():
    pages = {path.name for path in DOCS.rglob("*.md") if any(language == "python" for language, _ in blocks(path))}
    assert pages == set(SESSION) | set(ELSEWHERE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{name}" for name in ELSEWHERE)])
def test_python_that_other_tests_may_not_run_can_at_least_be_copied(page):
    for language, code in blocks(ROOT / page):
        if language == "python":
            assert ast.parse(code).body


@pytest.mark.slow
def test_the_first_hour_the_first_week_and_what_is_kept_of_whom(here, monkeypatch):
    with closing(PageRunner(monkeypatch)) as runner:
        for name in SESSION:
            assert runner.run(DOCS / name)


@pytest.mark.slow
def test_the_python_of_the_sentinels_page_runs(here):
    x, y = guards.train_set()
    names = {"model": guards.trained("mlp"), "train": (x, y), "held_out": guards.held_out()[0], "x": x[:5]}
    for language, code in blocks(DOCS / "sentinel.md"):
        if language == "python":
            exec(compile(code, "sentinel.md", "exec"), names)


def test_who_is_forgotten_leaves_no_row_and_the_others_stay_as_they_are(here):
    [code] = [code for language, code in blocks(DOCS / "privacy.md") if "def forget" in code]
    names: dict[str, object] = {}
    exec(code.partition("\nforget(")[0], names)
    bundle = guards.fitted(policy="sentinel", limits=Limits(radius=0.2, threshold="0.5/day")).bundle
    with closing(SqliteLedger("ledger.sqlite")) as ledger:
        guard = queen.Guard(bundle, ledger=ledger, secret=guards.SECRET)
        for client, rows in (("alice", slice(0, 40)), ("bob", slice(40, 90)), ("carol", slice(90, 120))):
            batch = guard.measure(guards.held_out()[0][rows])
            guard.judge(batch, client)
        ledger.pardon("bob", "boss")
        before = {name: ledger.standing(name) for name in ("alice", "carol")}
    (here / "keys.json").write_text('{"format": 1, "keys": {"1": {"name": "bob"}, "2": {"name": "carol"}}}')
    names["forget"]("bob", ledger="ledger.sqlite", keys="keys.json")  # type: ignore[operator]
    assert b"bob" not in (here / "ledger.sqlite").read_bytes() + (here / "keys.json").read_bytes()
    with closing(sqlite3.connect("ledger.sqlite")) as db:
        scopes = {scope for (scope,) in db.execute("SELECT id FROM scope")}
        assert len(scopes) == 2
        for table, rows in (("picture", 2**10), ("answered", 2**10), ("winnings", 2), ("counts", 2 * 2**28)):
            assert {number // rows for (number,) in db.execute(f"SELECT id FROM {table}")} <= scopes
        for table in ("record", "usage"):
            assert {scope for (scope,) in db.execute(f"SELECT scope FROM {table}")} <= scopes
    with closing(SqliteLedger("ledger.sqlite")) as ledger:
        assert {name: ledger.standing(name) for name in ledger.clients()} == before
        assert [event.name for event in ledger.events()] == ["forgotten"]
        again = queen.Guard(bundle, ledger=ledger, secret=guards.SECRET)
        assert torch.isfinite(again.answer(guards.held_out()[0][:3], client="bob").probabilities).all()
