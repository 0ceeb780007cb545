"""The server as operators run it: a process, its keys, its ledger, its end."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from http.client import HTTPConnection

import pytest
import torch
from typer.testing import CliRunner, Result

from queen import cli, load
from queen.errors import OptionError
from queen.ledger import SqliteLedger
from queen.serve import run
from queen.serve.settings import Settings
from tests.support.paths import ROOT
from tests.support.server import Server, served_in_thread, started
from tests.support.serving import digits, honest, inference_body, noise, small_bundle, small_guard
from tests.support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow


def probabilities(reply: dict) -> torch.Tensor:
    [output] = reply["outputs"]
    return torch.tensor(output["data"]).view(output["shape"])


def invoke(*arguments: str, **environment: str) -> Result:
    """A command in this process; a user's mistake is its exception."""
    return CliRunner(env=environment).invoke(cli.app, arguments)


def as_json(*arguments: str):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    with started(folder, ledger=f"sqlite:///{folder / 'ledger.sqlite'}", metrics_port=0, on_alarm="decoy") as server:
        yield server


def test_a_benign_client_gets_the_models_own_answers(server):
    x = digits()[:5]
    status, headers, reply = server.infer(x)
    assert status == 200
    assert torch.allclose(probabilities(reply), honest(x), atol=1e-5)
    assert "content-encoding" not in {name.lower() for name in headers}


@pytest.mark.parametrize("path", ["/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"])
def test_health_needs_no_key(server, path):
    assert server.get(path)[0] == 200


@pytest.mark.parametrize("path", ["/v2/models", "/v2/models/digits", "/metrics", "/admin/overview"])
def test_everything_else_does(server, path):
    status, headers, error = server.get(path)
    assert (status, list(error)) == (401, ["error"])
    assert headers["www-authenticate"] == "Bearer"


def test_a_clients_key_opens_nothing_of_the_operators(server):
    for path in ("/metrics", "/admin/overview", "/admin/clients", "/admin/events"):
        assert server.get(path, server.key)[0] == 403


def test_the_models_are_listed(server):
    assert server.get("/v2/models", server.key)[2] == {"models": [{"name": "digits"}]}
    assert server.get("/v2/models/other", server.key)[0] == 404
    assert server.get("/v2/models/digits/versions/7", server.key)[0] == 404
    assert server.get("/v2/models/digits/infer", server.key)[0] == 405
    assert server.get("/nothing", server.key)[0] == 404


def test_metrics_have_their_own_loopback_port_and_name_no_client(server):
    server.infer(digits()[:1])
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=PATIENCE) as reply:
        text = reply.read().decode()
    assert "queen_verdicts_total" in text
    assert "queen_ledger_seconds" in text
    assert "alice" not in text


def test_answers_have_the_same_length_whatever_the_verdict(server):
    key = server.new_key("lengths")
    sizes = Counter()
    for x in torch.cat([digits()[:20], noise(60)]):
        status, headers, _ = server.infer(x[None], key)
        sizes[headers["content-length"], status] += 1
    assert len(sizes) == 1
    standing = server.get("/admin/client?name=lengths", server.admin)[2]
    assert standing["alarmed"]  # so that honest answers and decoys were among them


def test_a_new_key_works_at_once_and_a_revoked_one_is_dead_soon(server):
    home = ("--home", str(server.home))
    key = as_json("keys", "new", "brief", *home)["key"]
    assert server.infer(digits()[:1], key)[0] == 200
    assert as_json("keys", "revoke", "brief", *home)
    wait_for(lambda: server.infer(digits()[:1], key)[0] == 401)


def test_operators_commands_go_through_the_server_that_has_the_ledger(server):
    key = server.new_key("thief")
    wait_for(lambda: server.infer(noise(150), key)[0] == 200)  # unknown keys are looked up only every 50 ms
    ledger = ("--ledger", server.ledger)
    listed = as_json("clients", *ledger)
    assert next(line for line in listed if line["name"] == "thief")["alarmed"]
    without_key = invoke("pardon", "thief", *ledger).exception
    assert isinstance(without_key, OptionError)
    assert "QUEEN_ADMIN_KEY" in str(without_key)
    assert invoke("pardon", "thief", *ledger, QUEEN_ADMIN_KEY=server.admin).exit_code == 0
    assert not server.get("/admin/client?name=thief", server.admin)[2]["alarmed"]
    events = server.get("/admin/events", server.admin)[2]["events"]
    assert [(e["what"], e["actor"]) for e in events if e["name"] == "thief"] == [("pardon", "boss"), ("alarm", "")]
    by_server = ("--server", server.url, "--key", server.admin)
    assert invoke("allow", "thief", *by_server).exit_code == 0
    assert invoke("budget", "thief", "--extra-answers", "5", *by_server).exit_code == 0
    assert invoke("alarms", "--all", *by_server).exit_code == 0
    thief = next(line for line in as_json("clients", *by_server) if line["name"] == "thief")
    assert thief["allowed"]
    assert thief["budget"] == {"threshold": None, "extra_answers": 5}
    assert invoke("revoke", "thief", *by_server).exit_code == 0
    assert "wants an admin key" in str(invoke("clients", "--server", server.url).exception)


def test_no_key_is_in_the_log_or_beside_it(server):
    server.infer(digits()[:1], server.key + "x")
    secret = server.key.split("_", 2)[2]
    assert secret not in server.stderr()
    for path in server.home.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


def test_a_locked_ledger_means_no_answers_and_recovery_without_a_restart(server):
    def recorded() -> int:
        return server.get("/admin/client?name=alice", server.admin)[2]["queries"]

    before = recorded()
    blocker = sqlite3.connect(server.ledger.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    for x in digits()[:2]:
        status, headers, _ = server.infer(x[None])
        assert (status, headers.get("retry-after")) == (503, "1")
    assert server.get("/v2/health/ready")[0] == 503
    assert server.get("/v2/health/live")[0] == 200
    blocker.execute("ROLLBACK")
    blocker.close()
    wait_for(lambda: server.get("/v2/health/ready")[0] == 200)
    assert server.infer(digits()[:1])[0] == 200
    assert recorded() == before + 1


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """A server on the ledger of one that answered 20 queries of alice and was killed."""
    folder = tmp_path_factory.mktemp("killed")
    ledger = f"sqlite:///{folder / 'ledger.sqlite'}"
    with started(folder, ledger=ledger) as server:
        assert {server.infer(x[None])[0] for x in digits()[:20]} == {200}
        server.process.kill()
        server.process.wait()
    with started(folder, home=folder / "again", ledger=ledger) as server:
        yield server


def queries_of_alice(server: Server) -> int:
    store = SqliteLedger(server.ledger.removeprefix("sqlite:///"))
    try:
        return store.standing("alice").queries
    finally:
        store.close()


def test_what_was_answered_is_on_record_after_a_kill(restarted):
    assert queries_of_alice(restarted) == 20
    assert restarted.infer(digits()[:1])[0] == 200
    assert queries_of_alice(restarted) == 21


def test_sigterm_under_load_answers_all_it_accepted(restarted):
    before = queries_of_alice(restarted)
    answered, broken, stop = Counter(), Counter(), threading.Event()

    def load_it(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", restarted.rest, timeout=PATIENCE)
        body = inference_body(digits()[number : number + 1])
        while not stop.is_set():
            try:
                connection.request("POST", "/v2/models/digits/infer", body, restarted.bearer)
                reply = connection.getresponse()
                reply.read()
                answered[reply.status] += 1
            except OSError:  # refused, or closed between two requests
                return
            except Exception:
                broken["torn"] += 1
                return

    threads = [threading.Thread(target=load_it, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    while answered[200] < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    code = restarted.stop(signal.SIGTERM, timeout=PATIENCE)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert code == 0
    assert answered[200] >= 20
    assert set(answered) <= {200, 503}
    assert broken["torn"] == 0
    assert queries_of_alice(restarted) == before + answered[200]


def test_unprotected_answers_honestly_and_says_so(tmp_path, monkeypatch):
    with served_in_thread(tmp_path, policy="none") as server:
        x = noise(50)
        assert torch.allclose(probabilities(server.infer(x)[2]), honest(x), atol=1e-5)
    monkeypatch.setattr(run, "serve", lambda settings, on_start: None)
    done = invoke("serve", str(small_bundle()), "--policy", "none")
    assert done.exit_code == 0
    assert "protects nothing" in done.stderr


COMMANDS = """
import contextlib, io, json, sys
from queen.cli import main
outcomes = []
for arguments in json.load(sys.stdin):
    sys.argv, stderr, code = ["queen", *arguments], io.StringIO(), 0
    with contextlib.redirect_stderr(stderr):
        try:
            main()
        except SystemExit as end:
            code = end.code
    outcomes.append((code, stderr.getvalue()))
print(json.dumps(outcomes))
"""
MISTAKES = {
    "no bundle": (["nowhere"], "nowhere"),
    "no such ledger": (["BUNDLE", "--ledger", "mysql://x"], "mysql"),
    "no such policy": (["BUNDLE", "--policy", "sentinal"], "sentinal"),
    "no such port": (["BUNDLE", "--port", "99999"], "port"),
    "groups": (["BUNDLE", "--groups", "{"], "--groups"),
    "no settings": (["BUNDLE", "--config", "nothing.yaml"], "nothing.yaml"),
    "no such device": (["BUNDLE", "--device", "cuda:77", "--ledger", "memory://"], "cuda:77"),
    "another host": (["BUNDLE", "--host", "203.0.113.7", "--ledger", "memory://"], "203.0.113.7"),
    "unprotected for everybody": (["BUNDLE", "--policy", "none", "--host", "0.0.0.0"], "loopback"),
    "no calibration": (["BARE", "--policy", "sentinel", "--ledger", "memory://"], "calibration"),
    "a second server": (["BUNDLE", "--ledger", "LEDGER", "--port", "0", "--grpc-port", "-1"], "is served already"),
}


@pytest.fixture(scope="module")
def outcomes(server, tmp_path_factory):
    """Exit code and standard error of `queen serve` for each mistake, all from one process."""
    folder = tmp_path_factory.mktemp("mistakes")
    bare = small_guard(policy="paper")
    bare.with_bundle(replace(bare.bundle, calibration=None)).save(folder / "bare")
    assert load(folder / "bare").bundle.policy == "paper"
    words = {"BUNDLE": str(small_bundle()), "BARE": str(folder / "bare"), "LEDGER": server.ledger}
    commands = [
        ["serve", *(words.get(word, word) for word in arguments), "--home", str(folder / "home")]
        for arguments, _ in MISTAKES.values()
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=ROOT, input=json.dumps(commands), capture_output=True, text=True,
        timeout=10 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(MISTAKES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line_and_no_trace(mistake, outcomes):
    code, stderr = outcomes[mistake]
    assert code == 2
    assert MISTAKES[mistake][1] in stderr
    assert "Traceback" not in stderr


def test_a_second_server_hears_where_the_first_is(server, outcomes):
    assert server.url in outcomes["a second server"][1]


def test_anonymous_clients_are_their_network(tmp_path):
    with served_in_thread(tmp_path, anonymous=True, trusted_proxy=("127.0.0.0/8",)) as server:
        url = f"{server.url}/v2/models/digits/infer"
        for address in ("198.51.100.1", "198.51.100.2", "203.0.113.1"):
            asked = urllib.request.Request(url, inference_body(digits()[:1]), {"X-Forwarded-For": address})
            with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
                assert reply.status == 200
        listed = server.get("/admin/clients", server.admin)[2]["clients"]
        assert {line["name"]: line["queries"] for line in listed} == {
            "anonymous:198.51.100.0/24": 2,
            "anonymous:203.0.113.0/24": 1,
        }


def test_groups_share_a_budget_and_keys_bring_their_own(tmp_path):
    with served_in_thread(tmp_path, groups={"tenant": {"extra_answers": 10, "radius": 0.001}}) as server:
        first, second = (server.new_key(f"m{i}", ["tenant:7"]) for i in range(2))
        statuses = [server.infer(x[None], key)[0] for x in digits()[:60] for key in (first, second)]
        assert statuses.count(429) > 0
        assert server.infer(digits()[:1])[0] == 200  # alice is in no group
        status, _, error = server.infer(digits()[:1], server.new_key("stray", ["team:1"]))
        assert status == 503
        assert "group" in error["error"]


def test_a_request_of_an_accused_client_is_refused_whole_where_asked(tmp_path):
    with served_in_thread(tmp_path, on_alarm="refuse") as server:
        status, headers, error = server.infer(noise(150))
        assert (status, headers["retry-after"]) == (429, "3600")
        assert server.infer(digits()[:1])[0] == 429
        standing = server.get("/admin/client?name=alice", server.admin)[2]
        assert 1 < standing["queries"] <= 151  # what is left of a refused request is dropped
        assert "alice" not in error["error"]


def test_help_shows_examples_and_every_setting():
    shown = invoke("serve", "--help", COLUMNS="200").stdout
    assert "queen serve build/demo/bundle" in shown
    names = [name.replace("_", "-") for name in Settings.model_fields if name != "bundle"]
    assert [name for name in names if f"--{name}" not in shown] == []
