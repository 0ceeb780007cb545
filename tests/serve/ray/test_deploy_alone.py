"""What the driver and a replica of `queen serve --ray` do by themselves; no cluster is needed for these."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queen.errors import BundleError, OptionError, QueenError, SecretError
from queen.secret import new_secret, secret_path, write_secret
from queen.serve.ray import deploy as scale
from queen.serve.ray.replica import Fingerprint, Replica, take_fingerprint
from queen.serve.settings import Settings, read_settings
from tests.support.serving import small_bundle


def settings(**given: Any) -> Settings:
    return read_settings({"bundle": small_bundle(), "ledger": "redis://127.0.0.1:1", "ray": True, **given})


@pytest.fixture
def copied(tmp_path) -> Path:
    """A bundle with its secret, as on another node."""
    shutil.copytree(small_bundle(), tmp_path / "digits")
    shutil.copy(secret_path(small_bundle()), secret_path(tmp_path / "digits"))
    return tmp_path / "digits"


def test_a_copy_of_bundle_and_secret_has_the_same_mark_and_no_other(copied):
    fingerprint = take_fingerprint(small_bundle())
    assert take_fingerprint(copied) == fingerprint
    assert secret_path(copied).read_text().strip() not in repr(fingerprint)
    write_secret(secret_path(copied), new_secret())
    assert take_fingerprint(copied).bundle == fingerprint.bundle
    assert take_fingerprint(copied).secret != fingerprint.secret


def test_a_replica_without_the_secret_makes_none(copied):
    secret_path(copied).unlink()
    with pytest.raises(SecretError, match=r"no secret '.*digits.secret' on .*copy the file"):
        Replica(settings(bundle=copied).model_dump(mode="json"), take_fingerprint(small_bundle()), "one")
    assert not secret_path(copied).exists()


def test_a_replica_with_another_bundle_or_secret_does_not_start(copied):
    plain, fingerprint = settings(bundle=copied).model_dump(mode="json"), take_fingerprint(small_bundle())
    with pytest.raises(SecretError, match="is another one"):
        Replica(plain, Fingerprint(fingerprint.bundle, "other"), "one")
    with pytest.raises(BundleError, match="is another one"):
        Replica(plain, Fingerprint("other", fingerprint.secret), "one")
    with pytest.raises(BundleError, match=r"cannot read the bundle '/nowhere' on"):
        Replica({**plain, "bundle": "/nowhere"}, fingerprint, "one")


def test_a_replica_works_as_long_as_its_lifespan_and_is_unhealthy_without_its_threads():
    plain = read_settings({"bundle": small_bundle(), "ledger": "memory://", "anonymous": True}).model_dump(mode="json")
    replica = Replica(plain, take_fingerprint(small_bundle()), "one")
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
    request = {"type": "http.request", "body": json.dumps({"inputs": [tensor]}).encode()}
    with pytest.raises(QueenError, match="threads of this replica have ended"):
        replica.check()

    async def ask() -> int:
        messages: list[Any] = []

        async def receive() -> Any:
            return request

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v2/models/digits/infer", "headers": [], "client": None}
        await replica(scope, receive, send)
        return messages[0]["status"]

    async def live() -> tuple[int, list[str]]:
        incoming, outgoing = asyncio.Queue(), asyncio.Queue()
        life = asyncio.create_task(replica({"type": "lifespan"}, incoming.get, outgoing.put))
        await incoming.put({"type": "lifespan.startup"})
        said = [(await outgoing.get())["type"]]
        status = await ask()
        replica.check()
        await incoming.put({"type": "lifespan.shutdown"})
        said.append((await outgoing.get())["type"])
        await life
        return status, said

    assert asyncio.run(live()) == (200, ["lifespan.startup.complete", "lifespan.shutdown.complete"])
    with pytest.raises(QueenError, match="threads of this replica have ended"):
        replica.check()
    figures = replica.service.metrics.render()[0].decode().splitlines()
    assert all('replica="one"' in line for line in figures if not line.startswith("#"))
    assert any(line.startswith("queen_rows_total") and line.endswith(" 1.0") for line in figures)


def test_settings_arrive_as_they_were_sent_whatever_the_node_has_in_its_environment(monkeypatch):
    sent = settings(groups={"tenant": {"extra_answers": 7}}, trusted_proxy=("10.0.0.0/8",), record="log", webhook=None)
    plain = json.loads(json.dumps(sent.model_dump(mode="json")))
    monkeypatch.setenv("QUEEN_WEBHOOK", "http://127.0.0.1:9/other")
    monkeypatch.setenv("QUEEN_MAX_ROWS", "1")
    assert Settings(**plain) == sent
    assert settings().webhook is not None  # or the environment would not matter to anybody


class FakeServe:
    """Ray Serve as far as the driver looks at it, one status after the other."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self.statuses, self.shut = list(statuses), 0

    def status(self) -> Any:
        applications = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return SimpleNamespace(applications=applications)

    def shutdown(self) -> None:
        self.shut += 1


def state(status: str, why: str = "") -> Any:
    return SimpleNamespace(status=status, message="", deployments={"Queen": SimpleNamespace(message=why)})


def watch(monkeypatch, serve: FakeServe, seconds: float = 0.3) -> list[str]:
    """The addresses that `on_start` got until somebody stopped it."""
    monkeypatch.setattr(scale, "POLL", 0.01)
    stop, addresses = threading.Event(), []
    threading.Timer(seconds, stop.set).start()
    scale._wait_and_watch(serve, "queen-1", settings(), stop, addresses.append)
    return addresses


def test_the_address_is_told_once_when_all_replicas_run(monkeypatch):
    states = [state(one) for one in ("DEPLOYING", "DEPLOYING", "RUNNING", "UNHEALTHY", "RUNNING")]
    assert watch(monkeypatch, FakeServe(*({"queen-1": one} for one in states))) == ["http://127.0.0.1:8000"]
    assert watch(monkeypatch, FakeServe({"queen-1": state("DEPLOYING")})) == []


def test_replicas_that_do_not_start_say_why(monkeypatch):
    trace = "Traceback (most recent call last):\n  File ...\nqueen.errors.SecretError: no secret 'x'\nretrying"
    with pytest.raises(QueenError, match=r"do not start \(DEPLOY_FAILED\): SecretError: no secret 'x'$"):
        watch(monkeypatch, FakeServe({"queen-1": state("DEPLOY_FAILED", trace)}))
    monkeypatch.setattr(scale, "START", 0.05)
    with pytest.raises(QueenError, match=r"do not start \(DEPLOYING\): no room$"):
        watch(monkeypatch, FakeServe({"queen-1": state("DEPLOYING", "no room")}))


def test_an_application_that_somebody_removed_is_the_end(monkeypatch):
    with pytest.raises(QueenError, match="queen-1 was removed"):
        watch(monkeypatch, FakeServe({"queen-1": state("RUNNING")}, {}))


def test_leftovers_are_replaced_and_what_others_serve_is_not():
    left = FakeServe({"queen-0": state("RUNNING")})
    scale._remove_leftovers(left)
    assert left.shut == 1
    shared = FakeServe({"queen-0": state("RUNNING"), "translator": state("RUNNING")})
    with pytest.raises(OptionError, match="serves translator already"):
        scale._remove_leftovers(shared)
    assert shared.shut == 0


def test_a_cluster_that_is_too_small_is_not_waited_for():
    small = SimpleNamespace(cluster_resources=lambda: {"CPU": 3.0})
    scale._check_room(small, settings(replicas=3))
    with pytest.raises(OptionError, match=r"2 replicas need 4 CPUs, and this Ray cluster has 3"):
        scale._check_room(small, settings(replicas=2, threads=2))
    with pytest.raises(OptionError, match=r"1 replicas need 1 GPUs, and this Ray cluster has 0"):
        scale._check_room(small, settings(replicas=1, device="cuda"))


def test_a_port_in_use_is_refused_even_where_proxies_could_share_it():
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"cannot listen on 127.0.0.1:{port}.*choose another --port"):
            scale._with_port(settings(port=port))
    assert scale._with_port(settings(port=port)).port == port
    assert scale._with_port(settings(port=0)).port > 0


def test_what_ray_cannot_do_is_said():
    with pytest.raises(OptionError, match="none has a metrics port"):
        scale._for_replicas(settings(metrics_port=0))
    assert scale._for_replicas(settings(bundle="digits", grpc_port=8001)).grpc_port == -1
    assert scale._for_replicas(settings(bundle="digits")).bundle == Path("digits").absolute()


def test_without_ray_the_way_out_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'queen-guard\[ray\]'"):
        scale.serve_on_ray(settings())
