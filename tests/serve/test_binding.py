"""A server and a ledger that is for another bundle: refused at the start, and noticed while it runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from queen import load
from queen.bundle.binding import rebind
from queen.errors import BindingError
from queen.ledger import open_ledger
from queen.ledger.base import BINDING
from queen.ledger.redis import admin
from queen.serve.service import Service
from queen.serve.settings import read_settings
from tests.support.redis_server import shared_server
from tests.support.server import served_in_thread
from tests.support.serving import digits, recalibrated_bundle, retrained_bundle, small_bundle
from tests.support.waiting import wait_for


def open_service(home: Path, bundle: Path, **settings: object) -> str | None:
    """Start on a ledger, and say what that is bound to then."""
    given = {"bundle": bundle, "home": home, "ledger": f"sqlite:///{home / 'ledger.sqlite'}", **settings}
    Service.open(read_settings(given)).guard.ledger.close()
    with closing(open_ledger(str(given["ledger"]))) as ledger:
        return ledger.fact(BINDING)


def test_a_model_of_20_classes_does_not_start_on_the_ledger_of_the_digits(tmp_path):
    open_service(tmp_path, small_bundle())
    with pytest.raises(BindingError, match=r"expected bundle .*10 classes.*got bundle .*20 classes.*ledger rebind"):
        open_service(tmp_path, retrained_bundle(20))
    with pytest.raises(BindingError):
        open_service(tmp_path, retrained_bundle())
    open_service(tmp_path, small_bundle())


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "strict"},
        {"observe": True, "threshold": 0.5, "extra_answers": 3, "alpha": 0.01},
        {"on_alarm": "decoy", "digits": 3, "after_alarm": 7},
        {"groups": {"tenant": {"radius": 0.3}}},
    ],
)
def test_other_settings_start_on_the_same_ledger(tmp_path, settings):
    first = open_service(tmp_path, small_bundle())
    assert first is not None
    assert open_service(tmp_path, small_bundle(), **settings) == first
    assert open_service(tmp_path, recalibrated_bundle(), **settings) == first


def test_the_radius_of_the_command_line_counts(tmp_path):
    open_service(tmp_path, small_bundle(), radius=0.3)
    with pytest.raises(BindingError, match=r"expected .*radius 0.3.*got .*radius 0.02"):
        open_service(tmp_path, small_bundle())
    open_service(tmp_path, small_bundle(), radius=0.3)


def test_an_unprotected_server_asks_no_ledger_and_needs_none(tmp_path):
    first = open_service(tmp_path, small_bundle())
    assert open_service(tmp_path, retrained_bundle(20), policy="none") == first  # it is still for the digits
    assert open_service(tmp_path / "new", retrained_bundle(20), policy="none") is None


@pytest.mark.slow
@pytest.mark.real
def test_a_server_whose_ledger_was_taken_over_answers_nobody_until_it_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(admin, "STOP_SECONDS", 0.0)
    url = shared_server().url
    with shared_server().client() as client:
        client.flushall()
    old, new = load(small_bundle()).binding, load(retrained_bundle()).binding
    with served_in_thread(tmp_path, ledger=url) as server, closing(open_ledger(url)) as ledger:
        assert server.infer(digits()[:1])[0] == 200
        rebind(ledger, new, "olga")
        wait_for(lambda: server.get("/v2/health/ready")[0] != 200)
        status, headers, _ = server.infer(digits()[1:2])
        assert (status, headers["retry-after"]) == (503, "1")
        assert ledger.standing("alice").queries == 1
        rebind(ledger, old, "olga")
        wait_for(lambda: server.get("/v2/health/ready")[0] == 200)
        assert server.infer(digits()[1:2])[0] == 200
    with shared_server().client() as client:
        client.flushall()
