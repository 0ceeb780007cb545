"""The client of the admin API: what it returns and does is what the ledger behind the server says and does."""

from __future__ import annotations

import socket

import pytest
from starlette.responses import RedirectResponse

from queen.errors import LedgerError, OptionError
from queen.ledger import Budget
from queen.ledger.words import NOTICES
from queen.serve.admin.client import AdminClient
from tests.support.admin_stub import HOSTILE


@pytest.fixture
def client(listener, stub) -> AdminClient:
    listener.app = stub.app()
    return AdminClient(f"{listener.url}/", stub.admin_key)


def test_standings_and_events_are_the_ledgers(stub, client):
    ledger = stub.guard.ledger
    for name, group in [*((name, False) for name in HOSTILE), ("thief-7", False), ("tenant:7", True), ("new", False)]:
        assert client.standing(name, group=group) == ledger.standing(name, group=group)
    assert client.events() == ledger.events()
    listed = client.standings()
    assert [(s.name, s.group, s.wealth) for s in listed] == [(s.name, s.group, s.wealth) for s in ledger.standings()]
    for shown, standing in zip(listed, ledger.standings(), strict=True):
        most = max(standing.coverage.values(), default=None)
        assert shown.coverage.items() <= standing.coverage.items()
        assert list(shown.coverage.values()) == ([] if most is None else [most])  # its most covered class alone
    assert any(shown.coverage for shown in listed)


def test_what_it_does_reaches_the_ledger_under_the_name_of_the_key(stub, client):
    ledger = stub.guard.ledger
    client.acknowledge(1, "ignored")
    client.pardon("thief-7", "ignored")
    client.allow("alice", "ignored")
    client.set_budget("alice", Budget(extra_answers=5), "ignored")
    assert client.standing("alice") == ledger.standing("alice")
    assert (ledger.standing("alice").allowed, ledger.standing("alice").budget) == (True, Budget(extra_answers=5))
    client.allow("alice", "ignored", allowed=False)
    client.set_budget("alice", None, "ignored")
    assert (ledger.standing("alice").allowed, ledger.standing("alice").budget) == (False, None)
    assert not ledger.standing("thief-7").alarmed
    assert ledger.events()[0].acknowledged == "olga <admin>"
    assert {event.actor for event in ledger.events() if event.what not in NOTICES} == {"olga <admin>"}
    assert client.revoke("alice") == [key.id for key in stub.keys.keys().values() if not key.active]


def test_the_servers_errors_are_passed_on(listener, stub, client):
    with pytest.raises(OptionError, match="says 404: no client 'nobody' in this ledger"):
        client.pardon("nobody", "ignored")
    with pytest.raises(OptionError, match="says 403"):
        AdminClient(listener.url, stub.plain_key).events()
    stub.fails = LedgerError("the disk is full")
    with pytest.raises(OptionError, match="says 503: the disk is full"):
        client.events()


def test_a_key_goes_to_the_named_server_alone(listener):
    listener.app = RedirectResponse("https://example.org/")
    with pytest.raises(OptionError, match="says 307: Temporary Redirect"):
        AdminClient(listener.url, "key").events()
    with pytest.raises(OptionError, match="expected the server as http://HOST:PORT, got 'file:///etc/passwd'"):
        AdminClient("file:///etc/passwd", "key")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(OptionError, match=f"cannot reach the server at {address}"):
        AdminClient(address, "key").events()
