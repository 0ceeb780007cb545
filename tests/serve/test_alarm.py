"""How operators learn of an alarm of a running server: by its log, metrics, webhook, dashboard and recorded queries."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from queen import cli
from tests.support.server import started
from tests.support.serving import digits, noise, small_bundle
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

SECRET = "a secret of the hook"


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((dict(self.headers), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def hook():
    server = HTTPServer(("127.0.0.1", 0), Hook)
    server.posted = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory, hook):
    """A server that a benign client and a thief have used."""
    folder = tmp_path_factory.mktemp("operating")
    url = f"http://127.0.0.1:{hook.server_port}/alarms"
    secret = folder / "webhook.secret"
    secret.touch(mode=0o600)
    secret.write_text(f"{SECRET}\n")
    options = {"webhook": url, "webhook_secret_file": secret, "record": folder / "queries", "access_log": True}
    with started(folder, metrics_port=0, on_alarm="decoy", **options) as server:
        key = server.new_key("thief")
        for start in range(0, 100, 20):
            assert server.infer(digits()[start : start + 20])[0] == 200
            assert server.infer(noise()[start : start + 20], key)[0] == 200
        yield server


def test_the_alarm_is_logged_once_with_who_and_why(server):
    alarms = wait_for(lambda: [line for line in server.lines() if line["event"] == "alarm"])
    assert [(line["name"], line["client"], line["level"]) for line in alarms] == [("thief", "thief", "warning")]
    assert alarms[0]["wealth"] >= 32_898  # pi^2 / 6 / (alpha delta), of a ledger's first calibration
    assert 0 < alarms[0]["queries"] <= 100


def test_the_alarm_is_counted(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=60) as reply:
        lines = [line.rpartition(" ") for line in reply.read().decode().splitlines()]
    figures = {name: float(value) for name, _, value in lines if "#" not in name}
    assert figures['queen_alarms_total{kind="client"}'] == 1
    assert figures["queen_rows_total"] >= 200
    assert sum(value for name, value in figures.items() if name.startswith("queen_verdicts_total{")) >= 200
    assert figures["queen_alarmed_rows_total"] > 50
    assert figures["queen_ready"] == 1


def test_the_alarm_is_posted_and_signed(server, hook):
    (headers, body), *rest = wait_for(lambda: hook.posted)
    assert rest == []
    posted = json.loads(body)
    assert (posted["event"], posted["name"], posted["client"], posted["group"]) == ("alarm", "thief", "thief", False)
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Queen-Signature"] == f"sha256={signature}"


def test_requests_are_logged_without_answers_or_keys(server):
    def logged():
        return [line for line in server.lines() if line["event"] == "request" and line["rows"]]

    wait_for(lambda: len(logged()) >= 10)  # a line follows its answer
    lines = logged()
    assert len(lines) == 10
    assert {line["rows"] for line in lines} == {20}
    assert len({line["key_id"] for line in lines}) == 2
    assert all("verdicts" not in line for line in lines)
    assert server.key.split("_", 2)[2] not in server.stderr()


def test_the_dashboard_counts_them(server):
    series = wait_for(lambda: (s := server.get("/admin/series", server.admin)[2]) and sum(s["rows"]) and s)
    assert sum(series["rows"]) == sum(sum(series[letter]) for letter in "ABCD")


def test_recorded_queries_find_the_thief_again(server):
    assert server.stop() == 0
    queries = str(server.home.parent / "queries")
    audit = CliRunner().invoke(cli.app, ["audit", str(small_bundle()), queries, "--json"])
    assert audit.exit_code == 0, audit.output
    clients = {line["name"]: line for line in json.loads(audit.stdout)["found"]}
    assert {name: line["queries"] for name, line in clients.items()} == {"alice": 100, "thief": 100}
    assert [name for name, line in clients.items() if line["accused"]] == ["thief"]
