"""Ledgers by address."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from queen.errors import LedgerError, OptionError
from queen.ledger import Ledger, MemoryLedger, RedisLedger, SqliteLedger, open_ledger
from queen.options import Limits


def ask(ledger: Ledger) -> list[str]:
    with closing(ledger):
        ledger.judge("a", [0], np.zeros((1, 2)), Limits())
        return list(ledger.clients())


def test_memory():
    assert isinstance(open_ledger("memory://"), MemoryLedger)


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
@pytest.mark.parametrize("place", ["clients.db", "a folder/ü?x=1#y.db", "absolute"])
def test_a_file(tmp_path, monkeypatch, form, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a folder").mkdir()
    path = str(tmp_path / "clients.db") if place == "absolute" else place
    ledger = open_ledger(form.format(path))
    assert isinstance(ledger, SqliteLedger)
    assert ask(ledger) == ["a"]
    assert (tmp_path / ("clients.db" if place == "absolute" else place)).is_file()


def test_a_path_object_and_options(tmp_path):
    ledger = open_ledger(tmp_path / "clients.db", cache=3)
    assert ledger._cache._limit == 3
    assert ask(ledger) == ["a"]


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_server(redis_url, scheme):
    ledger = open_ledger(redis_url.replace("redis", scheme, 1), prefix="other", timeout=5)
    assert isinstance(ledger, RedisLedger)
    assert ask(ledger) == ["a"]


def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(LedgerError, match=r"redis://127\.0\.0\.1:1/0") as caught:
        open_ledger("redis://user:hunter2@127.0.0.1:1/0", timeout=0.5)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["postgres://user:hunter2@host/db", "memory://x", "sqlite://clients.db", "sqlite:///", "", "://", "file:///x"],
)
def test_anything_else_is_refused_with_the_forms_there_are(url):
    with pytest.raises(OptionError) as caught:
        open_ledger(url)
    assert all(form in str(caught.value) for form in ("sqlite:///PATH", "redis://", "valkey://", "memory://"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", [7, None, b"clients.db"], ids=repr)
def test_what_is_no_text_is_refused(url):
    with pytest.raises(OptionError, match="as text"):
        open_ledger(url)


@pytest.mark.parametrize("url", ["memory://", "clients.db", "redis://127.0.0.1"])
def test_an_option_of_another_kind_is_refused(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="has no option 'speed'; known"):
        open_ledger(url, speed=9)
    assert list(tmp_path.iterdir()) == []
