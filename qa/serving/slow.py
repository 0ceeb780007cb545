"""Goal 9: clients that are slow are shown the door, and nobody else notices."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qa.serving.rest import ask, post
from qa.serving.scenario import Check, none_of
from qa.serving.state import body_of
from tests.support.paths import ROOT
from tests.support.server import Server, started

WITHIN = 10.0  # seconds: the server's own limit is 8
BASELINE = 10.0
FACTOR = 2.0


@dataclass(frozen=True)
class CrowdReport:
    """How long each slow client was kept, by kind, and what a normal client met meanwhile: statuses, seconds."""

    seconds_kept: dict[str, list[float | None]]
    statuses: list[int]
    seconds: list[float]
    left: int  # files that the server had open in the end beyond those it had before


def run(folder: Path, quick: bool) -> list[Check]:
    """A crowd of slow clients and one normal one, on a server with its default limits, but for one address."""
    crowded = {"max_address_connections": 4096}  # all of them come from one address, whose oldest would else be closed
    with started(folder, ledger=f"sqlite:///{folder / 'ledger.sqlite'}", **crowded) as server:
        alone = normal(server, 2.0 if quick else BASELINE)
        report = beset(server, 100 if quick else 500, WITHIN)
        return [*shown_the_door(server, report), *undisturbed(alone[1], report, quick)]


def control(folder: Path, quick: bool) -> list[Check]:
    """The same with uvicorn's own protocol, which waits."""
    with started(folder, module="qa.broken.patient") as server:
        return shown_the_door(server, beset(server, 10, WITHIN))


def beset(server: Server, count: int, within: float) -> CrowdReport:
    """Slow clients for a while, in a process of their own, and a normal one beside them."""
    command = [sys.executable, "-m", "qa.serving.crowd", server.rest, server.grpc, server.key, count, within + 2]
    pipe, before = subprocess.PIPE, open_files(server)
    with subprocess.Popen([str(part) for part in command], cwd=ROOT, stdin=pipe, stdout=pipe) as crowd:
        time.sleep(1.0)  # it needs that to begin
        statuses, seconds = normal(server, within + 1, lambda: bool(select.select([crowd.stdout], [], [], 0)[0]))
        line = crowd.stdout.readline() if crowd.stdout else b""
        end = time.monotonic() + within  # a deaf client is kept for a while after it has asked for the last time
        while (left := open_files(server) - before) > 0 and time.monotonic() < end:
            time.sleep(0.1)
        crowd.communicate(b"\n", timeout=60)
    return CrowdReport(json.loads(line), statuses, seconds, left)


def open_files(server: Server) -> int:
    """Files, connections among them, that the server holds."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def normal(server: Server, seconds: float, ended: Callable[[], bool] = lambda: False) -> tuple[list[int], list[float]]:
    """Statuses and times of a client that asks one question after the other, for so long or until all has ended."""
    statuses, times, end = list[int](), list[float](), time.monotonic() + seconds
    while time.monotonic() < end and not (times and ended()):
        reply = ask(server.rest, post(body_of(len(times) % 200), server.key))
        statuses.append(reply.status)
        times.append(reply.seconds)
        time.sleep(0.005)
    return statuses, times


def shown_the_door(server: Server, report: CrowdReport, within: float = WITHIN) -> list[Check]:
    """Every slow client was cut off in time, the normal one answered, and nothing is left of them."""
    waits = [(kind, seconds) for kind, each in report.seconds_kept.items() for seconds in each]
    late = [f"{kind}: {seconds}" for kind, seconds in waits if seconds is None or seconds > within]
    longest = max((seconds for _, seconds in waits if seconds is not None), default=0.0)
    in_time = none_of(f"slow clients kept longer than {within:g} s", late, len(waits))
    wrong = [status for status in report.statuses if status != 200]
    return [
        Check(in_time.name, in_time.holds, f"{in_time.found}; the longest {longest:.1f} s"),
        none_of("normal requests not answered", wrong, len(report.statuses)),
        Check("normal requests", len(report.statuses) > 0, str(len(report.statuses))),
        Check("connections left, those of clients who never read among them", report.left <= 0, str(report.left)),
        Check("the server lives", server.process.poll() is None),
    ]


def undisturbed(alone: list[float], report: CrowdReport, quick: bool) -> list[Check]:
    """How much slower the normal client's slowest hundredth became; only reported, not judged, when quick."""
    before, during = (1000 * float(np.quantile(times, 0.99)) for times in (alone, report.seconds))
    summary = f"{before:.1f} ms alone, {during:.1f} ms among them, {during / before:.2f} times"
    return [Check("99th percentile of the normal client", quick or during <= FACTOR * before, summary)]
