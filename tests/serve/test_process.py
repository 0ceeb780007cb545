"""The server as operators run it: a process, its keys, its ledger, its end."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
import urllib.error
import urllib.request
from collections import Counter
from http.client import HTTPConnection

import pytest
import torch

from queen import load
from queen.ledger import SqliteLedger
from tests.support.calls import call, infer, queen, request
from tests.support.server import Server, started
from tests.support.serving import digits, honest, noise, small_bundle, small_guard
from tests.support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow


def probabilities(reply: dict) -> torch.Tensor:
    [output] = reply["outputs"]
    return torch.tensor(output["data"]).view(output["shape"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    with started(folder, ledger=f"sqlite:///{folder / 'ledger.sqlite'}", metrics_port=0) as found:
        yield found


def ledger_of(server: Server) -> str:
    return str(server.home.parent / "ledger.sqlite")


def test_a_benign_client_gets_the_models_own_answers(server):
    x = digits()[:5]
    status, headers, reply = infer(server, x)
    assert status == 200
    assert torch.allclose(probabilities(reply), honest(x), atol=1e-5)
    assert "content-encoding" not in {name.lower() for name in headers}


@pytest.mark.parametrize("path", ["/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"])
def test_health_needs_no_key(server, path):
    assert call(server.url + path)[0] == 200


@pytest.mark.parametrize("path", ["/v2/models", "/v2/models/digits", "/metrics", "/admin/overview"])
def test_everything_else_does(server, path):
    status, headers, error = call(server.url + path)
    assert (status, list(error)) == (401, ["error"])
    assert headers["www-authenticate"] == "Bearer"


def test_a_clients_key_opens_nothing_of_the_operators(server):
    for path in ("/metrics", "/admin/overview", "/admin/clients", "/admin/events"):
        assert call(server.url + path, server.key)[0] == 403


def test_the_models_are_listed(server):
    assert call(f"{server.url}/v2/models", server.key)[2] == {"models": [{"name": "digits"}]}
    assert call(f"{server.url}/v2/models/other", server.key)[0] == 404
    assert call(f"{server.url}/v2/models/digits/versions/7", server.key)[0] == 404
    assert call(f"{server.url}/v2/models/digits/infer", server.key)[0] == 405
    assert call(f"{server.url}/nothing", server.key)[0] == 404


def test_metrics_have_their_own_loopback_port_and_name_no_client(server):
    infer(server, digits()[:1])
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=PATIENCE) as reply:
        text = reply.read().decode()
    assert "queen_verdicts_total" in text
    assert "queen_ledger_seconds" in text
    assert "alice" not in text


def test_answers_have_the_same_length_whatever_the_verdict(server):
    key = json.loads(queen("keys", "new", "lengths", "--home", str(server.home), "--json").stdout)["key"]
    sizes = Counter()
    for x in torch.cat([digits()[:20], noise(60)]):
        status, headers, _ = infer(server, x[None], key)
        sizes[headers["content-length"], status] += 1
    assert len(sizes) == 1
    standing = call(f"{server.url}/admin/client?name=lengths", server.admin)[2]
    assert standing["alarmed"]  # so that honest answers and decoys were among them


def test_a_new_key_works_at_once_and_a_revoked_one_is_dead_soon(server):
    key = json.loads(queen("keys", "new", "brief", "--home", str(server.home), "--json").stdout)["key"]
    assert infer(server, digits()[:1], key)[0] == 200
    assert queen("keys", "revoke", "brief", "--home", str(server.home)).returncode == 0
    wait_for(lambda: infer(server, digits()[:1], key)[0] == 401)


def test_operators_commands_go_through_the_server_that_has_the_ledger(server):
    key = json.loads(queen("keys", "new", "thief", "--home", str(server.home), "--json").stdout)["key"]
    infer(server, noise(150), key)
    where = f"sqlite:///{ledger_of(server)}"
    listed = json.loads(queen("clients", "--ledger", where, "--json").stdout)
    assert next(line for line in listed if line["name"] == "thief")["alarmed"]
    asked = queen("pardon", "thief", "--ledger", where)
    assert asked.returncode == 2
    assert "QUEEN_ADMIN_KEY" in asked.stderr
    assert queen("pardon", "thief", "--ledger", where, QUEEN_ADMIN_KEY=server.admin).returncode == 0
    assert not call(f"{server.url}/admin/client?name=thief", server.admin)[2]["alarmed"]
    events = call(f"{server.url}/admin/events", server.admin)[2]["events"]
    assert [(e["what"], e["actor"]) for e in events if e["name"] == "thief"] == [("pardon", "boss"), ("alarm", "")]
    by_server = ("--server", server.url, "--key", server.admin)
    assert queen("allow", "thief", *by_server).returncode == 0
    assert queen("budget", "thief", "--extra-answers", "5", *by_server).returncode == 0
    assert queen("alarms", "--all", *by_server).returncode == 0
    shown = json.loads(queen("clients", *by_server, "--json").stdout)
    thief = next(line for line in shown if line["name"] == "thief")
    assert thief["allowed"]
    assert thief["budget"] == {"threshold": None, "extra_answers": 5}
    assert queen("revoke", "thief", *by_server).returncode == 0
    assert "wants an admin key" in queen("clients", "--server", server.url).stderr


def test_one_server_a_file(server):
    folder = server.home.parent
    second = queen("serve", str(small_bundle()), "--home", str(server.home), "--ledger", f"sqlite:///{ledger_of(server)}",
                   "--port", "0", "--grpc-port", "-1")  # fmt: skip
    assert second.returncode == 2
    assert "is served already" in second.stderr
    assert server.url in second.stderr
    assert folder.exists()


def test_no_key_is_in_the_log_or_beside_it(server):
    infer(server, digits()[:1], server.key + "x")
    secret = server.key.split("_", 2)[2]
    assert secret not in server.stderr()
    for path in server.home.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


def test_a_locked_ledger_means_no_answers_and_recovery_without_a_restart(tmp_path):
    file = tmp_path / "ledger.sqlite"
    with started(tmp_path, ledger=f"sqlite:///{file}") as server:
        assert infer(server, digits()[:1])[0] == 200
        blocker = sqlite3.connect(file, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        statuses = set()
        for x in digits()[:4]:
            status, headers, _ = infer(server, x[None])
            statuses.add((status, headers.get("retry-after")))
        assert statuses == {(503, "1")}
        assert call(f"{server.url}/v2/health/ready")[0] == 503
        assert call(f"{server.url}/v2/health/live")[0] == 200
        blocker.execute("ROLLBACK")
        blocker.close()
        wait_for(lambda: call(f"{server.url}/v2/health/ready")[0] == 200)
        assert infer(server, digits()[:1])[0] == 200
    with_all = SqliteLedger(file)
    assert with_all.standing("alice").queries == 2
    with_all.close()


def test_what_was_answered_is_on_record_after_a_kill(tmp_path):
    file = tmp_path / "ledger.sqlite"
    with started(tmp_path, ledger=f"sqlite:///{file}") as server:
        answered = sum(infer(server, x[None])[0] == 200 for x in digits()[:20])
        server.process.kill()
        server.process.wait()
    store = SqliteLedger(file)
    assert answered == 20
    assert store.standing("alice").queries == 20
    store.close()
    with started(tmp_path, home=tmp_path / "again", ledger=f"sqlite:///{file}") as server:
        assert infer(server, digits()[:1])[0] == 200


def test_sigterm_under_load_answers_all_it_accepted(tmp_path):
    file = tmp_path / "ledger.sqlite"
    with started(tmp_path, ledger=f"sqlite:///{file}") as server:
        answered, broken, stop = Counter(), Counter(), threading.Event()

        def load_it(number: int) -> None:
            connection = HTTPConnection("127.0.0.1", server.rest, timeout=PATIENCE)
            while not stop.is_set():
                try:
                    connection.request("POST", "/v2/models/digits/infer", request(digits()[number : number + 1]),
                                       server.bearer)  # fmt: skip
                    reply = connection.getresponse()
                    reply.read()
                    answered[reply.status] += 1
                except OSError:  # refused, or closed between two requests
                    broken[number] += 1
                    return
                except Exception:
                    broken["torn"] += 1
                    return

        threads = [threading.Thread(target=load_it, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: answered[200] > 20)
        code = server.stop(signal.SIGTERM)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert code == 0
    assert set(answered) <= {200, 503}
    assert broken["torn"] == 0
    store = SqliteLedger(file)
    assert store.standing("alice").queries == answered[200]
    store.close()


def test_unprotected_is_loopback_only_and_says_so(tmp_path):
    with started(tmp_path, policy="none") as server:
        x = noise(50)
        assert torch.allclose(probabilities(infer(server, x)[2]), honest(x), atol=1e-5)
        assert "protects nothing" in server.stderr()
    refused = queen("serve", str(small_bundle()), "--policy", "none", "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "loopback" in refused.stderr


def test_the_sentinel_without_calibration_is_an_error(tmp_path):
    from dataclasses import replace

    bare = small_guard(policy="paper")
    bare = bare.with_bundle(replace(bare.bundle, calibration=None))
    bare.save(tmp_path / "bare")
    found = queen("serve", str(tmp_path / "bare"), "--policy", "sentinel", "--ledger", "memory://")
    assert found.returncode == 2
    assert "calibration" in found.stderr
    assert "Traceback" not in found.stderr
    assert load(tmp_path / "bare").bundle.policy == "paper"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere"),
        (["BUNDLE", "--ledger", "mysql://x"], "mysql"),
        (["BUNDLE", "--policy", "sentinal"], "sentinal"),
        (["BUNDLE", "--port", "99999"], "port"),
        (["BUNDLE", "--groups", "{"], "--groups"),
        (["BUNDLE", "--config", "nothing.yaml"], "nothing.yaml"),
        (["BUNDLE", "--device", "cuda:77", "--ledger", "memory://"], "cuda:77"),
        (["BUNDLE", "--host", "203.0.113.7", "--ledger", "memory://"], "203.0.113.7"),
    ],
)
def test_mistakes_are_one_line_and_no_trace(tmp_path, arguments, says):
    listed = [str(small_bundle()) if a == "BUNDLE" else a for a in arguments]
    found = queen("serve", *listed, "--home", str(tmp_path))
    assert found.returncode == 2
    assert says in found.stderr
    assert "Traceback" not in found.stderr


def test_anonymous_clients_are_their_network(tmp_path):
    with started(tmp_path, anonymous=True, trusted_proxy=["127.0.0.0/8"]) as server:
        url = f"{server.url}/v2/models/digits/infer"
        for address in ("198.51.100.1", "198.51.100.2", "203.0.113.1"):
            asked = urllib.request.Request(url, request(digits()[:1]), {"X-Forwarded-For": address})
            with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
                assert reply.status == 200
        listed = call(f"{server.url}/admin/clients", server.admin)[2]["clients"]
        assert {line["name"]: line["queries"] for line in listed} == {
            "anonymous:198.51.100.0/24": 2,
            "anonymous:203.0.113.0/24": 1,
        }


def test_groups_share_a_budget_and_keys_bring_their_own(tmp_path):
    groups = json.dumps({"tenant": {"extra_answers": 10, "radius": 0.001}})
    with started(tmp_path, groups=groups) as server:
        home = str(server.home)
        made = [queen("keys", "new", f"m{i}", "--group", "tenant:7", "--home", home, "--json") for i in range(2)]
        first, second = (json.loads(one.stdout)["key"] for one in made)
        statuses = [infer(server, x[None], key)[0] for x in digits()[:60] for key in (first, second)]
        assert statuses.count(429) > 0
        assert infer(server, digits()[:1])[0] == 200  # alice is in no group
        stray = json.loads(queen("keys", "new", "stray", "--group", "team:1", "--home", home, "--json").stdout)["key"]
        status, _, error = infer(server, digits()[:1], stray)
        assert status == 503
        assert "group" in error["error"]


def test_a_request_of_an_accused_client_is_refused_whole_where_asked(tmp_path):
    with started(tmp_path, on_alarm="refuse") as server:
        status, headers, error = infer(server, noise(150))
        assert (status, headers["retry-after"]) == (429, "3600")
        assert infer(server, digits()[:1])[0] == 429
        standing = call(f"{server.url}/admin/client?name=alice", server.admin)[2]
        assert standing["queries"] == 151
        assert "alice" not in error["error"]


def test_help_shows_examples_and_every_setting():
    from queen.serve.settings import Settings

    shown = queen("serve", "--help", COLUMNS="200").stdout
    assert "queen serve build/demo/bundle" in shown
    names = [name.replace("_", "-") for name in Settings.model_fields if name != "bundle"]
    assert [name for name in names if f"--{name}" not in shown] == []
