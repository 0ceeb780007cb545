"""The example under uvicorn with two workers on one ledger: a thief is caught across both, and is known in both."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from queen import load
from queen.errors import RefusedError
from queen.ledger import MemoryLedger, open_ledger
from tests.support.paths import ROOT
from tests.support.serving import digits, noise, small_bundle
from tests.support.waiting import PATIENCE, wait_for


@dataclass
class Worker:
    """One worker, over a connection that stays open."""

    connection: http.client.HTTPConnection
    process: int = 0

    def ask(self, x: Tensor, key: str = "key-of-mallory") -> tuple[int, Any]:
        """Status and content of the answer to a batch; an answer of another process is an error."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self.connection.request("POST", "/predict", json.dumps({"images": x.squeeze(1).tolist()}), headers)
        response = self.connection.getresponse()
        process = int(response.headers["x-process"])
        assert self.process in (0, process)
        self.process = process
        return response.status, json.load(response)


@dataclass
class Workers:
    """The example's application under uvicorn."""

    port: int

    def connect(self, count: int = 2) -> list[Worker]:
        """A connection to each of so many workers."""
        found: dict[int, Worker] = {}

        def look() -> bool:
            worker = Worker(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE))
            try:
                status, _ = worker.ask(digits()[:1], "nobody's")
            except (OSError, http.client.HTTPException):
                return False
            assert status == 401
            found.setdefault(worker.process, worker)
            return len(found) == count

        wait_for(look)
        return list(found.values())


@contextmanager
def started(ledger: str, folder: Path) -> Iterator[Workers]:
    log = folder / "uvicorn.log"
    command = [sys.executable, "-m", "uvicorn", "tests.support.web_app:app", "--workers", "2", "--port", "0"]
    environment = {**os.environ, "BUNDLE": str(small_bundle()), "LEDGER": ledger, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        running = wait_for(lambda: process.poll() or re.search(r"running on http://127.0.0.1:(\d+)", log.read_text()))
        assert not isinstance(running, int), log.read_text()
        yield Workers(int(running[1]))
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()
    except BaseException:
        print(log.read_text())
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def caught_after(x: Tensor) -> int:
    """How many answers one guard in one process gives to these queries, asked one after the other."""
    guard = load(small_bundle(), ledger=MemoryLedger())
    for i, row in enumerate(x.split(1)):
        try:
            guard.answer(row, client="mallory")
        except RefusedError:
            return i
    raise AssertionError("not caught")


def look_on(workers: Workers, ledger: str) -> None:
    """A thief takes turns between two workers, one of which is killed then."""
    pair = workers.connect()
    expected = caught_after(noise())
    assert expected >= 4
    turns = cycle(pair)
    statuses = [next(turns).ask(row)[0] for row in noise()[: expected + 1].split(1)]
    assert statuses == [200] * expected + [403]  # to the query as if one process had seen them all
    for worker in pair:
        status, content = worker.ask(noise(1, seed=1))
        assert (status, "stands accused" in content["error"]) == (403, True)
        status, content = worker.ask(digits()[:4], "key-of-alice")
        assert (status, len(content["digits"])) == (200, 4)
    os.kill(pair[0].process, signal.SIGKILL)
    assert pair[1].ask(noise(1, seed=2))[0] == 403
    again = wait_for(lambda: next((one for one in workers.connect() if one.process != pair[1].process), None))
    assert again.process != pair[0].process  # uvicorn has started another one
    assert again.ask(noise(1, seed=3))[0] == 403
    assert again.ask(digits()[4:5], "key-of-alice")[0] == 200
    with closing(open_ledger(ledger)) as opened:
        assert opened.standing("mallory").alarmed
        assert [(event.what, event.name) for event in opened.events()] == [("alarm", "mallory")]
        assert opened.standing("alice").queries == 9


@pytest.mark.slow
def test_a_thief_is_caught_across_two_workers_on_one_file(tmp_path):
    ledger = str(tmp_path / "clients.sqlite")
    with started(ledger, tmp_path) as workers:
        look_on(workers, ledger)


@pytest.mark.slow
def test_a_thief_is_caught_across_two_workers_on_one_redis(tmp_path, redis_url):
    with started(redis_url, tmp_path) as workers:
        look_on(workers, redis_url)
