"""Cells in processes of their own: all of them run once, whatever happens to the processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queen.bench import workers
from queen.bench.ray import Outcome, Place, Task
from queen.bench.workers import on_cores

TASKS: list[Task] = [({"folder": "."}, index) for index in range(5)]


def tell_process(task: Task, place: Place) -> Outcome:
    return task[1], {"process": os.getpid()}


def die_once(task: Task, place: Place) -> Outcome:
    """Task 2 kills its process the first time."""
    mark = Path(place.cache, "died")
    if task[1] == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task[1], {"process": os.getpid()}


def die(task: Task, place: Place) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return tell_process(task, place)


def wait_for_ever(task: Task, place: Place) -> Outcome:
    if task[1]:
        time.sleep(600)
    return task[1], {}


def run(work: workers.Work, tmp_path: Path, jobs: int) -> dict[int, dict]:
    outcomes = list(on_cores(work, TASKS, Place(str(tmp_path), jobs=jobs)))
    assert sorted(index for index, _ in outcomes) == list(range(5))
    return dict(outcomes)


def test_one_job_needs_no_other_process(tmp_path):
    assert {result["process"] for result in run(tell_process, tmp_path, 1).values()} == {os.getpid()}


@pytest.mark.slow
def test_processes_live_as_long_as_the_run_and_no_longer(tmp_path):
    processes = {result["process"] for result in run(tell_process, tmp_path, 2).values()}
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_process_that_dies_costs_no_cell(tmp_path):
    assert all("process" in result for result in run(die_once, tmp_path, 2).values())


@pytest.mark.slow
def test_cells_whose_processes_keep_dying_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "RESTARTS", 1)
    assert all("died again and again" in result["error"] for result in run(die, tmp_path, 2).values())


@pytest.mark.slow
def test_whoever_stops_listening_ends_the_processes(tmp_path):
    outcomes = on_cores(wait_for_ever, TASKS, Place(str(tmp_path), jobs=2))
    assert next(outcomes) == (0, {})
    outcomes.close()
    assert not multiprocessing.active_children()


SCRIPT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started deaf to it
sys.path.insert(0, {folder!r})
from queen.bench.ray import Place
from queen.bench.workers import on_cores
from test_workers import TASKS, wait_for_ever

if __name__ == "__main__":
    try:
        for outcome in on_cores(wait_for_ever, TASKS, Place(".", jobs=2)):
            print("first", flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@contextmanager
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run with two processes at work, in a process group of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    command, pipe = [sys.executable, script], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "first\n"
        yield process


@pytest.mark.slow
def test_an_interrupt_ends_all_without_a_stack_trace(tmp_path):
    with started(tmp_path) as process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, complained = process.communicate(timeout=60)
    assert said == "stopped\n"
    assert "Traceback" not in complained


@pytest.mark.slow
def test_processes_end_with_a_run_that_is_killed(tmp_path):
    with started(tmp_path) as process:
        process.kill()
        process.wait()
        for _ in range(600):
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("processes go on without the run that started them")
