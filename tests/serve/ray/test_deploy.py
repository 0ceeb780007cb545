"""The server on an emulated Ray cluster of two nodes with one core each, in front of a real Redis."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from queen.ledger import open_ledger
from queen.options import Group
from queen.serve.access.key_store import open_keys
from tests.support.redis_server import redis_server
from tests.support.server import Server, started
from tests.support.serving import WIDE, digits, honest, noise, small_guard
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.real

ray = pytest.importorskip(
    "ray", reason="Ray is not installed (pip install 'queen-guard[ray]'), so nothing is tested on it"
)

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
START = 600.0  # seconds for a cluster to start: as long as the command itself waits for its replicas
NET = "net:127.0.0.0/24"
WORKERS = tuple(f"worker-{i}" for i in range(6))
CLIENTS = ("early", "thief", "traveller", "leaver", *WORKERS, "later", "patient")
Answer = tuple[int, np.ndarray]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Any]:
    server = redis_server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def redis(store) -> str:
    return store.url


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        emulated = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
        emulated.add_node(**NODE)
        ray.init(address=emulated.address, log_to_driver=False, logging_level="ERROR")
        patch.setenv("RAY_ADDRESS", emulated.address)
        try:
            yield emulated
        finally:
            ray.shutdown()
            emulated.shutdown()


@pytest.fixture(scope="module")
def keys(redis) -> dict[str, str]:
    """A key for each client, made before the server starts, so that no test must wait until all replicas know it."""
    key_store = open_keys(Path("unused"), redis)
    keys = {name: key_store.add(name)[0] for name in CLIENTS}
    key_store.close()
    return keys


@pytest.fixture(scope="module")
def server(nodes, redis, keys, tmp_path_factory) -> Iterator[Server]:
    """`queen serve --ray` beside the cluster; it pools clients by network, too."""
    folder = tmp_path_factory.mktemp("server")
    options = {"ray": True, "replicas": 2, "on_alarm": "decoy", "groups": '{"net": {}}'}
    with started(folder, patience=START, ledger=redis, **options) as server:
        assert len(counted(server, "queen_rows_total")) == 2  # the second proxy may listen a moment later
        yield server


@pytest.fixture
def ledger(redis) -> Iterator[Any]:
    ledger = open_ledger(redis)
    yield ledger
    ledger.close()


class RestClient:
    """One client, with a connection per request: a connection has one proxy, which prefers its node's replica."""

    def __init__(self, server: Server, key: str, **headers: str) -> None:
        self.server, self.headers = server, {"Authorization": f"Bearer {key}", **headers}

    def get(self, path: str) -> tuple[int, bytes]:
        return self._request("GET", path)

    def infer(self, x: torch.Tensor) -> Answer:
        """Status and answers (n, 10) for rows (n, 1, 8, 8)."""
        tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.flatten().tolist()}
        status, body = self._request("POST", "/v2/models/digits/infer", json.dumps({"inputs": [tensor]}))
        if status != 200:
            return status, np.empty((0, 10), np.float32)
        [output] = json.loads(body)["outputs"]
        return status, np.array(output["data"], np.float32).reshape(output["shape"])

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.rest, timeout=PATIENCE)
        try:
            connection.request(method, path, body, self.headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


def counted(server: Server, name: str, label: str = "") -> dict[str, float]:
    """A counter of every replica: each request reaches one of them."""
    counts: dict[str, float] = {}
    client = RestClient(server, server.admin)
    deadline = time.monotonic() + PATIENCE
    for tries in range(10_000):
        status, body = client.get("/metrics")
        assert status == 200
        [replica] = set(re.findall(rb'replica="(\w+)"', body))
        lines = [line.split() for line in body.decode().splitlines() if line.startswith(name) and label in line]
        counts[replica.decode()] = sum(float(line[-1]) for line in lines)
        if (len(counts) == 2 and tries >= 10) or time.monotonic() > deadline:
            break
    return counts


def replicas() -> dict[str, Any]:
    """The replicas that run, by name."""
    from ray.serve.context import _get_global_client

    details = _get_global_client().get_serve_details()
    [application] = details["applications"].values()
    [deployment] = application["deployments"].values()
    return {one["replica_id"]: one for one in deployment["replicas"] if one["state"] == "RUNNING"}


def until(condition: Callable[[], bool]) -> bool:
    """Wait for the condition; returns whether it came true in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_there_is_one_replica_on_each_node_and_both_answer(server, keys):
    assert len({one["node_id"] for one in replicas().values()}) == 2
    client = RestClient(server, keys["early"])
    x = digits()[:20]
    for i in range(20):
        status, answer = client.infer(x[i : i + 1])
        assert status == 200
        assert np.allclose(answer, honest(x[i : i + 1]), atol=1e-5)
    rows = counted(server, "queen_rows_total")
    assert set(rows) == set(replicas())
    assert all(rows.values())


def test_decisions_are_those_of_one_guard_and_an_alarm_is_one_for_all(server, keys, ledger):
    """Digits and then noise, one after the other: whichever replica answers, it says what a lone guard would."""
    guard = small_guard(on_alarm="decoy", groups={"net": Group(limits=WIDE)})
    x = torch.cat([digits()[:30], noise(120)])
    client = RestClient(server, keys["thief"])
    before = counted(server, "queen_alarmed_rows_total")
    lies = 0
    for i in range(len(x)):
        status, answer = client.infer(x[i : i + 1])
        reply = guard.answer(x[i : i + 1], client="thief")
        assert status == 200
        assert np.allclose(answer, reply.probabilities, atol=1e-5), i
        lies += not np.allclose(answer, honest(x[i : i + 1]), atol=1e-2)
    assert ledger.standing("thief") == guard.ledger.standing("thief")
    assert ledger.standing("thief").alarmed
    assert lies > 20
    after = counted(server, "queen_alarmed_rows_total")
    assert all(after[name] > before[name] for name in after)  # one raised the alarm, both enforce it
    alarms = [event for event in ledger.events() if (event.what, event.name) == ("alarm", "thief")]
    assert len(alarms) == 1


def test_nobody_chooses_the_network_that_it_comes_from(server, keys, ledger):
    """Ray's proxies would believe the header of whoever connects from their own machine."""
    before = ledger.standing(NET, group=True).queries
    client = RestClient(server, keys["traveller"], **{"X-Forwarded-For": "203.0.113.9"})
    assert client.infer(digits()[:3])[0] == 200
    assert ledger.standing(NET, group=True).queries == before + 3
    assert ledger.standing("net:203.0.113.0/24", group=True).queries == 0


def test_a_revoked_key_is_soon_dead_in_every_replica(server, keys, redis):
    client = RestClient(server, keys["leaver"])
    assert {client.infer(digits()[:1])[0] for _ in range(20)} == {200}
    key_store = open_keys(Path("unused"), redis)
    key_store.revoke("leaver")
    key_store.close()
    assert until(lambda: {client.infer(digits()[:1])[0] for _ in range(20)} == {401})
    before = counted(server, "queen_rows_total")
    assert {client.infer(digits()[:1])[0] for _ in range(60)} == {401}
    assert counted(server, "queen_rows_total") == before
    denied = counted(server, "queen_requests_total", 'status="401"')
    assert len(denied) == 2
    assert all(denied.values())  # both were asked


def test_what_is_answered_is_on_record_when_a_replica_is_killed(server, keys, ledger):
    stop, statuses = threading.Event(), {name: Counter() for name in WORKERS}
    wrong: list[str] = []
    x, expected = digits(), honest(digits()).numpy()

    def work(name: str, number: int) -> None:
        client = RestClient(server, keys[name])
        for i in range(number, 10_000):
            if stop.is_set():
                break
            row = i % len(x)
            try:
                status, answer = client.infer(x[row : row + 1])
            except (OSError, http.client.HTTPException) as error:
                status, answer = type(error).__name__, np.empty((0, 10))
            statuses[name][status] += 1
            if status == 200 and not np.allclose(answer, expected[row], atol=1e-4):
                wrong.append(f"{name} {i}")

    threads = [threading.Thread(target=work, args=(name, 7 * i), daemon=True) for i, name in enumerate(WORKERS)]
    for thread in threads:
        thread.start()
    assert until(lambda: all(counts[200] > 10 for counts in statuses.values()))
    before = replicas()
    victim = next(iter(before.values()))
    os.kill(victim["pid"], signal.SIGKILL)
    recovered = until(lambda: len(replicas()) == 2 and victim["replica_id"] not in replicas())
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert recovered
    assert wrong == []
    assert set().union(*statuses.values()) <= {200, 500, 503}
    for name, counts in statuses.items():
        assert counts[200] <= ledger.standing(name).queries <= counts.total()
    client = RestClient(server, keys["later"])
    assert {client.infer(x[:1])[0] for _ in range(20)} == {200}


def test_without_the_ledger_nobody_is_answered_and_with_it_all_is_well_again(server, keys, store):
    client = RestClient(server, keys["patient"])
    before = set(replicas())
    store.kill()
    try:
        assert {client.infer(digits()[:1])[0] for _ in range(20)} == {503}
        assert {client.get("/v2/health/ready")[0] for _ in range(10)} == {503}
    finally:
        store.start()
    assert until(lambda: all(client.infer(digits()[:1])[0] == 200 for _ in range(20)))
    assert until(lambda: all(client.get("/v2/health/ready")[0] == 200 for _ in range(20)))  # of both replicas
    assert set(replicas()) == before  # nobody had to be replaced


def test_health_and_a_mistake_need_no_ray_to_be_understood(server):
    client = RestClient(server, server.key)
    assert client.get("/v2/health/ready") == (200, b'{"ready":true}')
    assert client.get("/v2/models")[1] == b'{"models":[{"name":"digits"}]}'
    status, body = client.get("/v2/models/other")
    assert status == 404
    assert "error" in json.loads(body)
    assert any(line["event"].startswith("REST only") for line in server.lines())


def test_it_goes_when_told_to_and_leaves_the_cluster(server, nodes):
    """Last of those with this server."""
    assert any(actor["namespace"] == "serve" for actor in ray.util.list_named_actors(all_namespaces=True))
    assert server.stop(timeout=PATIENCE) == 0, server.stderr()
    assert [line["event"] for line in server.lines()][-2:] == ["stopping", "stopped"]
    assert ray.util.list_named_actors(all_namespaces=True) == []
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    with pytest.raises(ConnectionRefusedError):
        RestClient(server, server.key).get("/v2/health/live")


@pytest.mark.long
def test_a_cluster_of_its_own_ends_with_it(redis, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # the names of sockets must be
        monkeypatch.setenv("RAY_TMPDIR", short)
        with started(tmp_path, patience=START, ledger=redis, ray=True, replicas=1) as server:
            assert RestClient(server, server.key).infer(digits()[:2])[0] == 200
            assert processes(short)
            assert server.stop(timeout=PATIENCE) == 0, server.stderr()
        assert until(lambda: not processes(short))
        logs = "".join(path.read_text() for path in Path(short).rglob("worker-*.err"))
        assert '"event":"replica stopped"' in logs  # in order, not killed


def processes(folder: str) -> list[bytes]:
    """The command lines of all processes that name the folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return [line for line in lines if folder.encode() in line]
