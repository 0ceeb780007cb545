"""Goal 21: one client floods, and another one hardly notices."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qa.serving.rest import HOST, PATIENCE, post, talk
from qa.serving.scenario import Check, none_of
from qa.serving.state import body_of
from tests.support.paths import ROOT
from tests.support.server import Server, started

FLOODS = ((64, 1024), (400, 64))  # connections, rows per request
FACTOR = 3.0


@dataclass(frozen=True)
class Polite:
    """What a client met that asks one question after the other: statuses and seconds."""

    statuses: list[int]
    seconds: list[float]

    def quantile(self, q: float) -> float:
        """Milliseconds."""
        return 1000 * float(np.quantile(self.seconds, q))


def run(folder: Path, quick: bool) -> list[Check]:
    """Both floods on a server as it is by default."""
    with pinned(folder, ledger=f"sqlite:///{folder / 'ledger.sqlite'}") as server:
        return besieged(server, quick)


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server with one queue for all."""
    with pinned(folder, module="qa.broken.one_queue") as server:
        return besieged(server, quick)


@contextmanager
def pinned(folder: Path, **settings: object) -> Iterator[Server]:
    """A server on the last core; this process, and with it all clients, on the first."""
    cores = sorted(os.sched_getaffinity(0))
    with started(folder, **settings) as server:  # type: ignore[arg-type]
        for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[-1]})
        os.sched_setaffinity(0, {cores[0]})
        try:
            yield server
        finally:
            os.sched_setaffinity(0, set(cores))


def besieged(server: Server, quick: bool, floods: Sequence[tuple[int, int]] = FLOODS) -> list[Check]:
    """A polite client alone, and during each flood of somebody else."""
    key, seconds = server.new_key("flooder"), 3.0 if quick else 30.0
    ask_politely(server, 1.0)
    alone = ask_politely(server, seconds)
    checks = []
    for connections, rows in floods:
        with flooded(server, key, connections, rows) as counts:
            during = ask_politely(server, seconds)
        checks += undisturbed(f"{connections} x {rows} rows", alone, during, counts, quick)
    return [*checks, Check("the server lives", server.process.poll() is None)]


@contextmanager
def flooded(server: Server, key: str, connections: int, rows: int) -> Iterator[Counter[str]]:
    """A flood in a process of its own; what its statuses were is known at the end."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "qa.serving.flood", server.rest, key, connections, rows, core]
    pipe, counts = subprocess.PIPE, Counter[str]()
    with subprocess.Popen([str(part) for part in command], cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        time.sleep(4.0)  # it needs that to begin, and to fill the queue
        yield counts
        counts.update(json.loads(process.communicate(b"", timeout=PATIENCE)[0]))


def ask_politely(server: Server, seconds: float) -> Polite:
    """One question after the other on one connection, a row each."""
    polite, end = Polite([], []), time.monotonic() + seconds
    requests = [post(body_of(i), server.key) for i in range(50)]
    with socket.create_connection((HOST, server.rest), timeout=PATIENCE) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < end:
            reply = talk(wire, requests[len(polite.statuses) % len(requests)])
            polite.statuses.append(reply.status)
            polite.seconds.append(reply.seconds)
            time.sleep(0.002)
    return polite


def undisturbed(name: str, alone: Polite, during: Polite, flood: Counter[str], quick: bool) -> list[Check]:
    """All of its questions were answered, and its slowest hundredth is not much slower (only reported when quick)."""
    wrong = [status for status in during.statuses if status != 200]
    before, after = alone.quantile(0.99), during.quantile(0.99)
    summary = (
        f"{before:.1f} ms alone, {after:.1f} ms during the flood, {after / before:.2f} times "
        f"(medians {alone.quantile(0.5):.1f} and {during.quantile(0.5):.1f})"
    )
    return [
        none_of(f"{name}: polite requests not answered", wrong, len(during.statuses)),
        Check(f"{name}: 99th percentile of the polite client", quick or after <= FACTOR * before, summary),
        Check(f"{name}: the flood was one", flood["200"] + flood["503"] > 0, str(dict(flood))),
    ]
