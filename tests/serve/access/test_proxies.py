"""A proxy that nobody has named is noticed and said, and whoever only pretends to be one gains nothing by it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.serve.access import proxies
from queen.serve.access.auth import Authenticator
from queen.serve.access.key_store import FileKeys
from queen.serve.access.proxies import MAX_ORIGINS, MAX_PEERS, UnnamedProxies
from queen.serve.grpc import NAME
from tests.support.grpc_stub import message
from tests.support.http import body, talk
from tests.support.metrics import values
from tests.support.server import served_in_thread
from tests.support.waiting import PATIENCE


@pytest.fixture
def lines(monkeypatch) -> list[dict[str, object]]:
    logged: list[dict[str, object]] = []
    monkeypatch.setattr(proxies, "log", lambda event, **fields: logged.append(fields))
    return logged


@pytest.fixture
def store(tmp_path) -> FileKeys:
    return FileKeys(tmp_path)


def test_a_proxy_is_logged_once_and_the_notice_counts_for_whom_it_speaks(store, lines):
    door = Authenticator(store, anonymous=True, trusted_proxies=["10.0.0.0/8"])
    for user in range(5):
        assert door.caller(None, "203.0.113.7", f"1.2.{user}.4").client == "anonymous:203.0.113.0/24"
        door.caller(None, "203.0.113.8", "1.2.3.4")
        door.caller(None, "10.0.0.1", f"1.2.{user}.4")  # named
        door.caller(None, "192.0.2.1")  # no proxy
    assert [line["peer"] for line in lines] == ["203.0.113.7", "203.0.113.8"]
    assert all("--trusted-proxy" in str(line["why"]) for line in lines)
    first, second = door.unnamed_proxies.advice
    assert "--trusted-proxy 203.0.113.7" in first
    assert "5 different addresses" in first
    assert "it named 1 address)" in second


def test_with_keys_it_matters_only_to_groups_of_networks(store, lines):
    text, _ = store.add("alice")
    for net_groups, noticed in ((False, 0), (True, 1)):
        door = Authenticator(store, net_groups=net_groups)
        door.caller(f"Bearer {text}", "203.0.113.7", "1.2.3.4")
        assert len(door.unnamed_proxies.advice) == noticed
    assert len(lines) == 1


@given(st.lists(st.tuples(st.ip_addresses(), st.text(max_size=300)), max_size=200))
def test_nobody_can_fill_the_log_or_the_memory(requests):
    logged, counted = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxies, "log", lambda event, **fields: logged.append(fields))
        unnamed = UnnamedProxies(lambda: counted.append(1))
        for peer, forwarded in requests * 3:
            unnamed.note(str(peer), forwarded)
    peers = {str(peer) for peer, _ in requests}
    assert len(logged) == len(unnamed.advice) == min(len(peers), MAX_PEERS)
    assert len(counted) == 3 * len(requests)
    held = unnamed._origins
    assert all(len(origins) <= MAX_ORIGINS and max(map(len, origins)) <= 64 for origins in held.values())


def test_many_addresses_are_not_all_remembered():
    unnamed = UnnamedProxies()
    for number in range(1000):
        unnamed.note("203.0.113.7", f"1.2.{number // 256}.{number % 256}")
    [sentence] = unnamed.advice
    assert "16 or more different addresses" in sentence


@pytest.mark.parametrize("header", ["X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "Via: 1.1 front", None])
def test_a_server_says_so_in_metrics_and_to_operators(tmp_path, header):
    with served_in_thread(tmp_path, anonymous=True, grpc_port=0) as server:
        lines = ["POST /v2/models/digits/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body())}"]
        head = "\r\n".join([*lines, *([header] if header else []), "", ""]).encode()
        assert asyncio.run(talk(server.rest, head, body()))[0] == 200
        name, _, value = (header or "x-other: 1").partition(": ")
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            call = channel.unary_unary(f"/{NAME}/ModelInfer")
            call(message().SerializeToString(), metadata=((name.lower(), value),), timeout=PATIENCE)
        counted = values(server.service.metrics)["queen_unnamed_proxy_requests_total"]
        assert counted == (2 if header else 0)
        advice = server.get("/admin/overview", server.admin)[2]["server"]["advice"]
        assert [("--trusted-proxy 127.0.0.1" in sentence) for sentence in advice] == ([True] if header else [])


def test_a_named_proxy_is_left_alone(tmp_path):
    with served_in_thread(tmp_path, anonymous=True, trusted_proxy=("127.0.0.1",)) as server:
        head = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body())}\r\n"
        for user in ("198.51.100.9", "203.0.113.7"):
            asked = f"{head}X-Forwarded-For: {user}\r\n\r\n".encode()
            assert asyncio.run(talk(server.rest, asked, body()))[0] == 200
        assert server.service.advice == []
        clients = {standing.name for standing in server.service.guard.ledger.standings()}
        assert clients == {"anonymous:198.51.100.0/24", "anonymous:203.0.113.0/24"}
