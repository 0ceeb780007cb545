"""The benchmark of the server: its load generator counts right, and all of it runs. No test here looks at a speed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks" / "serve"
PATIENCE = 300.0


def script(name):
    """One of the benchmark's files as a module, under a name that nothing else has."""
    spec = importlib.util.spec_from_file_location(f"serve_benchmark_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load, scrape = script("load"), script("scrape")


class Counting(socketserver.ThreadingTCPServer):
    """A real server that notes every request, answers with the statuses it is told, and hangs up after `most`."""

    daemon_threads = True

    def __init__(self, statuses=(200,), most=10**9, pieces=1):
        super().__init__(("127.0.0.1", 0), Answer)
        self.statuses, self.most, self.pieces = statuses, most, pieces
        self.seen, self.answered, self.lock = [], Counter(), threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v2/models/x/infer"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def note(self, request):
        with self.lock:
            status = self.statuses[len(self.seen) % len(self.statuses)]
            self.seen.append(request)
            self.answered[str(status)] += 1
            return status

    def __exit__(self, *error):
        self.shutdown()
        super().__exit__(*error)


class Answer(socketserver.StreamRequestHandler):
    """One connection of it."""

    def handle(self):
        while len(self.server.seen) < self.server.most and (first := self.rfile.readline()):
            lines = list(iter(lambda: self.rfile.readline().decode().strip(), ""))
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = self.rfile.read(int(headers["content-length"]))
            status = self.server.note((first.decode().strip(), headers, body))
            answer = b"HTTP/1.1 %d X\r\nContent-Length: 5\r\nx: y\r\n\r\nhello" % status
            size = -(-len(answer) // self.server.pieces)
            for i in range(0, len(answer), size):
                time.sleep(0.001)  # so that pieces travel one by one
                self.wfile.write(answer[i : i + size])


BODIES = [b"body %d" % i for i in range(7)]


def ask(server, **options):
    return asyncio.run(load.ask(server.url, BODIES, **{"seconds": 0.4, "warm_up": 0.1, "connections": 3, **options}))


def test_every_request_is_counted_once():
    with Counting() as server:
        found = ask(server)
    assert found["sent"] == len(server.seen)  # closed loop: nothing is sent that is not answered
    assert 0 < found["requests"] <= found["sent"]
    assert found["statuses"] == {"200": found["requests"]}
    assert found["errors"] == 0
    assert found["requests_per_second"] == pytest.approx(found["requests"] / 0.4)


def test_without_a_warm_up_all_but_the_last_answers_count():
    with Counting() as server:
        found = ask(server, warm_up=0.0)
    assert found["sent"] - 3 <= found["requests"] <= found["sent"]  # the last one of each connection may come late


def test_errors_are_counted_by_status():
    with Counting(statuses=(200, 503, 429)) as server:
        found = ask(server, warm_up=0.0)
    assert set(found["statuses"]) == {"200", "429", "503"}
    for status, count in found["statuses"].items():
        assert server.answered[status] - 3 <= count <= server.answered[status]
    assert found["errors"] == found["statuses"]["503"] + found["statuses"]["429"] > 0


def test_answers_in_pieces_are_put_together():
    with Counting(pieces=9) as server:
        found = ask(server)
    assert found["sent"] == len(server.seen)
    assert set(found["statuses"]) == {"200"}


def test_a_server_that_hangs_up_is_noticed():
    with Counting(most=5) as server:
        found = ask(server, warm_up=0.0)
    assert len(server.seen) >= 5
    assert found["statuses"]["lost"] == found["errors"] == 3
    assert found["requests"] == found["statuses"]["200"]


def test_every_connection_is_a_client_of_its_own_and_goes_through_all_bodies():
    with Counting() as server:
        ask(server, keys=["one", "two", "three"], headers=["X-Extra: 1"])
    by_key = {}
    for line, headers, body in server.seen:
        assert line == "POST /v2/models/x/infer HTTP/1.1"
        assert headers["x-extra"] == "1"
        by_key.setdefault(headers["authorization"], []).append(body)
    assert set(by_key) == {"bearer one", "bearer two", "bearer three"}
    for bodies in by_key.values():
        start = BODIES.index(bodies[0])
        assert bodies == [BODIES[(start + i) % len(BODIES)] for i in range(len(bodies))]
    assert len({bodies[0] for bodies in by_key.values()}) == 3


def test_percentiles_are_those_of_all_samples():
    found = load.percentiles([i / 1000 for i in range(1, 101)])
    assert found == pytest.approx({"p50": 50, "p95": 95, "p99": 99, "max": 100})
    assert load.percentiles([0.004]) == {"p50": 4, "p95": 4, "p99": 4, "max": 4}
    assert load.percentiles([]) == {}


def test_bodies_are_lines_or_parts_of_a_file(tmp_path):
    (tmp_path / "bodies").write_bytes(b"ab\ncd\nef")
    assert load.read_bodies(tmp_path / "bodies", None) == [b"ab", b"cd", b"ef"]
    assert load.read_bodies(tmp_path / "bodies", 4) == [b"ab\nc", b"d\nef"]


def test_the_command_prints_json(tmp_path):
    (tmp_path / "bodies").write_bytes(b"\n".join(BODIES))
    (tmp_path / "keys").write_text("one\ntwo\n")
    with Counting() as server:
        command = [sys.executable, FOLDER / "load.py", server.url, "--bodies", tmp_path / "bodies", "--keys"]
        command += [tmp_path / "keys", "--connections", "2", "--seconds", "0.3", "--warm-up", "0.1", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert json.loads(done.stdout)["sent"] == len(server.seen) > 0


HISTOGRAM = """# HELP t_seconds x
t_seconds_bucket{le="0.001"} 10.0
t_seconds_bucket{le="0.002"} 30.0
t_seconds_bucket{le="+Inf"} 40.0
t_seconds_count 40.0
t_seconds_sum 0.08
"""


def test_quantiles_of_a_histogram_lie_in_their_bucket():
    found = scrape.changes("", HISTOGRAM)
    assert scrape.quantile(found, "t_seconds", 0.25) == pytest.approx(0.001)
    assert scrape.quantile(found, "t_seconds", 0.5) == pytest.approx(0.0015)
    assert scrape.quantile(found, "t_seconds", 0.95) == 0.002  # all that is known of what lies beyond
    assert scrape.mean(found, "t_seconds") == pytest.approx(0.002)


def test_only_what_was_counted_in_between_counts():
    nothing = scrape.changes(HISTOGRAM, HISTOGRAM)
    assert scrape.total(nothing, "t_seconds_count") == 0
    assert scrape.mean(nothing, "t_seconds") != scrape.mean(nothing, "t_seconds")  # NaN


@pytest.mark.long
@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here: apt install redis-server")
def test_a_quick_run_measures_every_server_and_says_what_holds(tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, FOLDER / "run.py", "--quick", "--only", "digits", "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    servers = {cell["server"] for cell in found["cells"]}
    assert servers >= {"none memory", "sentinel memory", "sentinel sqlite", "sentinel redis"}
    assert {cell["connections"] for cell in found["cells"]} == {1, 32}
    for cell in found["cells"]:
        [figures] = cell["rounds"]
        assert figures["errors"] == 0
        assert figures["requests"] > 0
        if cell["server"].startswith("sentinel"):
            assert sum(figures["server"]["verdicts"].values()) == pytest.approx(1)
            assert figures["server"]["alarmed"] == 0
    measured = {target["what"]: target["holds"] for target in found["targets"]}
    assert [holds for what, holds in measured.items() if "VGG" in what] == [None, None]
    assert all(isinstance(holds, bool) for what, holds in measured.items() if what.startswith("digits"))
    for said in ("medians of the rounds", "waiting", *(target["what"] for target in found["targets"])):
        assert said in done.stdout
