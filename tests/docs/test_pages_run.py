"""What the documents tell a reader to type does what they say."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.support.page_runner import PageRunner
from tests.support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, and none of the variables that queen reads."""
    for name in ("QUEEN_HOME", "QUEEN_LEDGER", "QUEEN_SERVER", "QUEEN_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_first_hour_the_first_week_and_what_is_kept_of_whom(here, monkeypatch):
    with closing(PageRunner(monkeypatch)) as runner:
        for name in ("start", "operate", "privacy"):
            assert runner.run(DOCS / f"{name}.md")
