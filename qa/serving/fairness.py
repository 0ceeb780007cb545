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
from typing import Any

import numpy as np

from qa.serving.rest import HOST, PATIENCE, post, talk
from qa.serving.scenario import Check, none_of
from qa.serving.state import body_of
from queen.serve.protocol import oip_pb2 as oip
from tests.support.paths import ROOT
from tests.support.server import Server, started
from tests.support.serving import digits, inference_body, noise

FACTOR = 3.0
SHORT = 512  # rows of a queue that two floods fill


@dataclass(frozen=True)
class Flood:
    """So many connections (gRPC: calls at a time), each of which sends one request of so many rows after the other."""

    connections: int
    rows: int
    grpc: bool = False

    def __str__(self) -> str:
        """As checks call it."""
        return f"{self.connections} x {self.rows} rows{' over gRPC' if self.grpc else ''}"


FLOODS = (Flood(64, 1024), Flood(400, 64), Flood(64, 1024, grpc=True))


@dataclass(frozen=True)
class Polite:
    """What a client met that asks one question after the other: statuses and seconds."""

    statuses: list[int]
    seconds: list[float]

    def quantile(self, q: float) -> float:
        """Milliseconds."""
        return 1000 * float(np.quantile(self.seconds, q))


def run(folder: Path, quick: bool) -> list[Check]:
    """The floods on a server as it is by default, then an accused client on one with a short queue."""
    seconds = 1.0 if quick else 30.0
    with pinned(folder, ledger=f"sqlite:///{folder / 'ledger.sqlite'}", release_every="auto") as server:
        checks = besieged(server, seconds, judge_times=not quick)
    with pinned(folder, max_queue=SHORT, home=folder / "short") as server:
        return checks + accused_lose_first(server, seconds)


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server with one queue for all."""
    with pinned(folder, module="qa.broken.one_queue", max_queue=SHORT) as server:
        return [*besieged(server, 1.0, FLOODS[1:2], judge_times=True), *accused_lose_first(server, 1.0)]


@contextmanager
def pinned(folder: Path, **settings: Any) -> Iterator[Server]:
    """A server on the last core, from its start; this process, and with it all clients, on the first."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})  # the server has this from us, and so computes with one thread
    try:
        with started(folder, **settings) as server:
            os.sched_setaffinity(0, {cores[0]})
            yield server
    finally:
        os.sched_setaffinity(0, set(cores))


def besieged(server: Server, seconds: float, floods: Sequence[Flood] = FLOODS, *, judge_times: bool) -> list[Check]:
    """A polite client alone, and during each flood of somebody else."""
    key = server.new_key("flooder")
    ask_politely(server, 0.5)  # whatever is slow only once
    alone, checks = ask_politely(server, seconds), list[Check]()
    for flood in floods:
        with flooded(server, key, flood) as counts:
            during = ask_politely(server, seconds)
        checks += undisturbed(str(flood), alone, during, judge_times)
        checks.append(Check(f"{flood}: the flood's answers", counts.total() > 0, str(dict(counts))))
    return [*checks, Check("the server lives", server.process.poll() is None)]


@contextmanager
def flooded(server: Server, key: str, flood: Flood) -> Iterator[Counter[str]]:
    """A flood in a process of its own, once it has filled the queue; its statuses are known at the end."""
    file = server.log.with_suffix(f".{flood}".replace(" ", "-"))
    file.write_bytes(grpc_message(flood.rows) if flood.grpc else post(body_of(0, flood.rows), key))
    core, port = min(os.sched_getaffinity(0)), server.grpc if flood.grpc else server.rest
    command = [sys.executable, "-m", "qa.serving.flood", core, port, file, flood.connections, *[key] * flood.grpc]
    pipe, counts = subprocess.PIPE, Counter[str]()
    with subprocess.Popen([str(part) for part in command], cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.0)
        yield counts
        counts.update(json.loads(process.communicate(b"", timeout=PATIENCE)[0]))


def grpc_message(rows: int) -> bytes:
    """A request for some digits, as raw bytes."""
    x = digits().repeat(-(-rows // len(digits())), 1, 1, 1)[:rows]
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=x.shape)
    request = oip.ModelInferRequest(model_name="digits", inputs=[tensor], raw_input_contents=[x.numpy().tobytes()])
    return request.SerializeToString()


def ask_politely(server: Server, seconds: float) -> Polite:
    """One question after the other on one connection, a row each."""
    polite, end = Polite([], []), time.monotonic() + seconds
    requests = [post(body_of(i), server.key) for i in range(50)]
    with socket.create_connection((HOST, server.rest), timeout=PATIENCE) as wire:
        while time.monotonic() < end:
            reply = talk(wire, requests[len(polite.statuses) % len(requests)])
            polite.statuses.append(reply.status)
            polite.seconds.append(reply.seconds)
            time.sleep(0.002)
    return polite


def undisturbed(name: str, alone: Polite, during: Polite, judge_times: bool) -> list[Check]:
    """All questions were answered, and the slowest hundredth took not much longer (else it is only reported)."""
    wrong = [status for status in during.statuses if status != 200]
    before, after = alone.quantile(0.99), during.quantile(0.99)
    summary = (
        f"{before:.1f} ms alone, {after:.1f} ms during the flood, {after / before:.2f} times "
        f"(medians {alone.quantile(0.5):.1f} and {during.quantile(0.5):.1f})"
    )
    return [
        none_of(f"{name}: polite requests not answered", wrong, len(during.statuses)),
        Check(f"{name}: 99th percentile of the polite client", not judge_times or after <= FACTOR * before, summary),
    ]


def accused_lose_first(server: Server, seconds: float) -> list[Check]:
    """An accused client and an honest one fill the queue together: only the accused one is told to come later."""
    thief, honest = server.new_key("thief"), server.new_key("honest")
    with socket.create_connection((HOST, server.rest), timeout=PATIENCE) as wire:
        replies = [talk(wire, post(inference_body(noise(50, seed=i)), thief)).status for i in range(10)]
    with flooded(server, thief, Flood(32, 64)) as accused, flooded(server, honest, Flood(8, 32)) as others:
        time.sleep(seconds)
    return [
        Check("the thief stands accused", replies[-1] == 429, str(replies)),
        Check("the accused client is told to come later", accused["503"] > 0, str(dict(accused))),
        Check(
            "an honest client is not, though the queue is full", others["200"] > 0 == others["503"], str(dict(others))
        ),
    ]
