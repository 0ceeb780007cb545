"""Cells on an emulated Ray cluster of two nodes with one core each."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from queen.bench import ray as cluster
from queen.bench.naming import as_json
from queen.bench.ray import Place, on_ray
from queen.bench.run import read_results, run_spec, work
from queen.bench.spec import make_spec
from queen.errors import OptionError
from tests.support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.real

ray = pytest.importorskip("ray")

SPEC: dict[str, Any] = {
    "name": "tiny",
    "protectee": {
        "name": "digits8",
        "data": {"set": "digits", "split": "all"},
        "train": 300,
        "calibration": 100,
        "test": 100,
        "pool": {"set": "photo_patches", "size": 8, "channels": 1, "count": 100},
        "network": {"name": "small_cnn", "width": 4, "hidden": 16, "grid": 2},
        "schedule": {"epochs": 3, "lr": 0.1, "batch": 32},
    },
    "thief": {"schedule": {"epochs": 20, "batch": 16}},
    "budget": 60,
    "utility": {"clients": 3, "queries": 20},
    "defenses": ["none", "emdp"],
    "seeds": [0, 1],
    "matrix": [{"queries": "knockoff", "attacks": "direct"}],
}
CELLS = 4
INLINE = 100 * 1024  # bytes; what is larger goes through Ray's object store, and is lost with a node
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
IMPATIENT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what depends on the clock."""
    result = copy.deepcopy(result)
    del result["seconds"], result["reused"], result["thief"]["images_per_second"], result["thief"]["training_seconds"]
    return result


def results(out: Path) -> list[dict[str, Any]]:
    return [timeless(result) for result in read_results(out)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """What comes out without Ray."""
    out = tmp_path_factory.mktemp("plain")
    assert run_spec(make_spec(SPEC), out, jobs=1, progress=False).done == CELLS
    return out


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes, each with a worker that has everything imported already."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = NODE | {"include_dashboard": False, "_system_config": IMPATIENT}
        emulated = Cluster(initialize_head=True, head_node_args=head)
        emulated.add_node(**NODE)
        ray.init(address=emulated.address, log_to_driver=False, logging_level="ERROR")
        try:
            ray.get([warm(node["NodeID"]) for node in ray.nodes()])
            yield emulated
        finally:
            ray.shutdown()
            emulated.shutdown()


def warm(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=1)
    def ready() -> None:
        import queen.bench.run  # noqa: F401

    return ready.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()


@pytest.fixture(scope="module")
def spread(nodes, tmp_path_factory) -> Path:
    """What comes out of the cluster."""
    out = tmp_path_factory.mktemp("spread")
    done = run_spec(make_spec(SPEC), out, ray_address=nodes.address, progress=False)
    assert (done.done, done.failed) == (CELLS, {})
    return out


def test_the_results_are_the_same_to_the_last_bit(plain, spread):
    assert results(spread) == results(plain)
    assert len({result["answers"]["l1"] for result in results(plain)}) > 1  # or all of it could be a constant


def test_both_nodes_worked(spread):
    """A node has one core, a cell takes one: two cells at a time means two nodes."""

    def reported() -> list[dict[str, Any]]:
        return [event for event in ray.timeline() if event["cat"] == "task::work"]

    wait_for(lambda: len(reported()) >= CELLS)  # Ray reports with a delay
    cells = reported()
    times = sorted((cell["ts"], cell["ts"] + cell["dur"], cell["tid"]) for cell in cells)
    together = [(a[2], b[2]) for a, b in pairwise(times) if b[0] < a[1]]
    assert together
    assert all(a != b for a, b in together)


def test_nothing_large_travels(plain):
    place = Place(str(plain / ".cache"))
    task = as_json(make_spec(SPEC)), 0
    assert len(pickle.dumps((work, task, place))) < INLINE
    assert all(len(pickle.dumps(result)) < INLINE for result in read_results(plain))


def children(node: Any) -> list[int]:
    """The processes of a node that run a cell right now."""
    [raylet] = node.all_processes["raylet"]
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            title = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent == raylet.process.pid and title.startswith(b"ray::work"):
            pids.append(int(folder.name))
    return pids


def in_the_middle(node: Any, strike: Callable[[int], None]) -> threading.Thread:
    """Hit the node's worker while it runs a cell: halted first, so that it cannot end meanwhile."""

    def lie_in_wait() -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for pid in children(node):
                os.kill(pid, signal.SIGSTOP)
                if pid in children(node):
                    strike(pid)
                    return
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)

    thread = threading.Thread(target=lie_in_wait, daemon=True)
    thread.start()
    return thread


def test_cells_of_a_killed_worker_and_of_a_lost_node_are_run_again(nodes, plain, tmp_path):
    lost = nodes.add_node(**NODE)
    ray.get(warm(lost.node_id))
    killed: list[str] = []

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        killed.append("worker")

    def lose(pid: int) -> None:
        nodes.remove_node(lost, allow_graceful=False)
        os.kill(pid, signal.SIGKILL)
        killed.append("node")

    threads = [in_the_middle(nodes.head_node, kill), in_the_middle(lost, lose)]
    done = run_spec(make_spec(SPEC), tmp_path, ray_address=nodes.address, progress=False)
    for thread in threads:
        thread.join()
    assert sorted(killed) == ["node", "worker"]
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert (done.done, done.failed) == (CELLS, {})
    assert results(tmp_path) == results(plain)


def test_a_cell_that_cannot_be_run_does_not_stop_the_others(nodes, monkeypatch):
    monkeypatch.setattr(cluster, "RETRIES", 0)

    def fragile(task: Any, place: Place) -> Any:
        if task[1] == 0:
            os._exit(1)
        if task[1] == 1:
            raise KeyError("what was not there")
        return task[1], {"fine": place.cache}

    outcomes = dict(on_ray(fragile, [({}, index) for index in range(4)], Place("here"), nodes.address))
    assert set(outcomes) == {0, 1, 2, 3}
    assert outcomes[0]["error"].startswith("WorkerCrashedError: ")
    assert "\n" not in outcomes[0]["error"]
    assert outcomes[1]["error"] == "KeyError: 'what was not there'"
    assert outcomes[2] == outcomes[3] == {"fine": str(Path("here").absolute())}


def test_a_run_that_is_stopped_leaves_the_cluster_to_others(nodes):
    def slow(task: Any, place: Place) -> Any:
        time.sleep(0 if task[1] == 0 else 600)
        return task[1], {}

    outcomes = on_ray(slow, [({}, index) for index in range(5)], Place("here"), nodes.address)
    assert next(outcomes) == (0, {})
    outcomes.close()
    wait_for(lambda: ray.available_resources().get("CPU") == 2)
    assert ray.is_initialized()  # it was there before us


def test_a_cluster_without_gpus_is_not_waited_for(nodes):
    with pytest.raises(OptionError, match=r"device 'cuda:0' needs a GPU, .* has none"):
        list(on_ray(work, [({}, 0)], Place("here", "cuda:0"), nodes.address))


def test_nothing_to_do_needs_no_cluster():
    assert list(on_ray(work, [], Place("here"), "nowhere")) == []


@pytest.mark.long
def test_the_command_starts_a_cluster_and_leaves_nothing_behind(plain, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(plain, out)
    missing = sorted(out.rglob("*-s1.json"))[-1]
    missing.unlink()
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # the names of sockets must be
        words = "-m queen bench run spec.yaml --out out --ray local --json"
        environment = os.environ | {"RAY_TMPDIR": short, "RAY_ADDRESS": "192.0.2.1:6379"}  # "local" means here
        done = subprocess.run(
            [sys.executable, *words.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"done": 1, "skipped": CELLS - 1, "failed": {}, "left": 0}
        assert done.stderr == ""
        assert any(Path(short).iterdir())  # it was Ray's, or the next line would say nothing
        assert alive(short) == []
    assert results(out) == results(plain)


def alive(mark: str) -> list[str]:
    """Command lines of processes that name the mark; those that just end get a moment."""
    lines: list[str] = []
    for _ in range(600):
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        lines = [line for line in lines if mark in line]
        if not lines:
            break
        time.sleep(0.1)
    return lines


NOBODY = """
import sys
from queen.bench.ray import Place, on_ray
from queen.errors import OptionError
for address in sys.argv[1:]:
    try:
        list(on_ray(print, [({}, 0)], Place("here"), address))
    except OptionError as error:
        print(error)
"""


def test_an_address_where_nobody_listens_is_said_at_once():
    command = [sys.executable, "-c", NOBODY, "127.0.0.1:1", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.stderr == ""
    refused, malformed = done.stdout.splitlines()
    assert refused.startswith("no Ray cluster at '127.0.0.1:1': [Errno 111] Connection refused; expected host:port")
    assert malformed.startswith("no Ray cluster at 'nonsense': ")


def test_without_ray_the_way_out_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'queen-guard\[ray\]'"):
        list(on_ray(work, [({}, 0)], Place("here"), "local"))
