"""Processes beside the caller's own: they help while it works, and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from queen.parallel.processes import at_the_same_time
from tests.support.paths import ROOT
from tests.support.waiting import wait_for


def note_number(folder: Path, name: str) -> None:
    """Leave the process's number in a file; then fail, or go on for long."""
    (folder / f"{name}.part").write_text(str(os.getpid()))
    (folder / f"{name}.part").rename(folder / name)
    if name == "broken":
        raise ZeroDivisionError("nobody hears of this")
    time.sleep(600)


def is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_work_beside_the_caller_and_end_with_it(tmp_path, capfd):
    files = [tmp_path / name for name in ("first", "broken", "second")]
    with at_the_same_time(partial(note_number, tmp_path), [file.name for file in files]):
        wait_for(lambda: all(file.exists() for file in files))
        numbers = [int(file.read_text()) for file in files]
        assert is_alive(numbers[0])
    assert len({*numbers, os.getpid()}) == 4
    assert not any(map(is_alive, numbers))
    assert "ZeroDivisionError" not in capfd.readouterr().err


def test_they_end_with_a_caller_that_fails(tmp_path):
    def fail() -> None:
        with at_the_same_time(partial(note_number, tmp_path), ["first"]):
            wait_for((tmp_path / "first").exists)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not is_alive(int((tmp_path / "first").read_text()))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_they_end_with_a_caller_that_is_killed(tmp_path, how):
    program = (
        "import sys, time\nfrom functools import partial\nfrom pathlib import Path\n"
        "from queen.parallel.processes import at_the_same_time\nfrom tests.test_processes import note_number\n"
        "with at_the_same_time(partial(note_number, Path(sys.argv[1])), ['first']):\n    time.sleep(600)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    wait_for((tmp_path / "first").exists)
    caller.send_signal(how)
    caller.wait()
    number = int((tmp_path / "first").read_text())
    wait_for(lambda: not is_alive(number))


def test_without_tasks_there_are_no_processes(tmp_path):
    with at_the_same_time(partial(note_number, tmp_path), []):
        pass
    assert list(tmp_path.iterdir()) == []
