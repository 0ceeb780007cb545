"""What a client can learn from the time that an answer takes: three clients ask the same server in turn.

    python benchmarks/serve/timing.py [--out results/timing/cpu-2-cores.json]     (four minutes; needs redis-server)

One client asks new questions and gets honest answers, one asks the same question again and again, and one has been
accused and gets decoys. `tell` is the chance to say from the times of two answers which of them was the honest, new one
(0.5: none at all), `more` how many microseconds the other kind takes more in the median. Loopback, one request at a
time, nothing else running: over a network there is more noise, and a patient client needs more questions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import scrape
from load import head_of
from models import HELD_OUT, Served, as_json, digits, make_digits
from run import machine
from servers import Server, queen_server, redis_server

FLAGS = (["--no-uniform"], ["--uniform"], ["--uniform", "--release-every", "0.005"])
KINDS = ("new", "again", "accused")
DECOYS = ["--on-alarm", "decoy", "--after-alarm", "-1"]
DIM = 400  # dim images of the thief, whom they accuse, before its times count


class Client:
    """One connection that asks and waits."""

    def __init__(self, url: str, key: str) -> None:
        where = urlsplit(url)
        self._wire = socket.create_connection((where.hostname or "", where.port or 80))
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = head_of(url, key, ["Content-Type: application/json"])

    def ask(self, body: bytes) -> float:
        """Seconds that the answer took."""
        request = self._head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        start = time.perf_counter()
        self._wire.sendall(request)
        answer = self._wire.recv(65_536)
        taken = time.perf_counter() - start
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:500])
        return taken

    def close(self) -> None:
        """Hang up."""
        self._wire.close()


def times(server: Server, questions: Sequence[bytes], count: int) -> dict[str, list[float]]:
    """Seconds of `count` answers of each kind, the kinds in random order."""
    keys = (server.keys or Path()).read_text().split()
    clients = {kind: Client(server.url, key) for kind, key in zip(KINDS, keys, strict=True)}
    for image in 0.3 * digits(HELD_OUT)[0][:DIM]:
        clients["accused"].ask(as_json(image))
    if scrape.total(scrape.read(server.counters()), "queen_alarms_total") != 1:
        raise RuntimeError("the thief was not accused")
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    order = random.Random(0)  # noqa: S311
    for number in range(count):
        for kind in order.sample(KINDS, len(KINDS)):
            body = questions[0] if kind == "again" else questions[number]
            seconds[kind].append(clients[kind].ask(body))
    for client in clients.values():
        client.close()
    if scrape.total(scrape.read(server.counters()), "queen_alarms_total") != 1:
        raise RuntimeError("a benign client was accused")
    return {kind: each[count // 10 :] for kind, each in seconds.items()}


def distance(honest: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """How well the kinds can be told apart."""
    ranks = np.argsort(np.argsort(np.concatenate([honest, other])))
    above = (ranks[len(honest) :].sum() - len(other) * (len(other) - 1) / 2) / (len(honest) * len(other))
    more = 1e6 * (np.median(other) - np.median(honest))
    return {"tell": round(float(max(above, 1 - above)), 3), "more_us": round(float(more), 1)}


def measure(served: Served, folder: Path, ledger: str, *, flags: list[str], count: int) -> dict[str, Any]:
    """One server."""
    questions = served.questions.read_bytes().splitlines()
    options: dict[str, Any] = {"policy": "sentinel", "ledger": ledger, "threads": 1, "clients": len(KINDS)}
    with queen_server(served, folder, **options, flags=[*DECOYS, *flags]) as server:
        server.wait()
        seconds = times(server, questions, count)
    return {
        "ledger": ledger.partition(":")[0],
        "flags": " ".join(flags),
        "answers_a_kind": len(seconds["new"]),
        "median_us": round(1e6 * float(np.median(seconds["new"])), 1),
        **{kind: distance(seconds["new"], seconds[kind]) for kind in KINDS[1:]},
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="answers of each kind")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    Path("build").mkdir(exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "cells": []}
    with TemporaryDirectory(dir="build") as name, contextlib.ExitStack() as stack:
        folder = Path(name).resolve()
        served = make_digits(folder, given.count)
        for store in ("memory", "sqlite", "redis"):
            for number, flags in enumerate(FLAGS):
                own = folder / f"{store}-{number}"
                url = {"memory": "memory://", "sqlite": f"sqlite:///{own}/ledger.sqlite"}.get(store)
                url = url or stack.enter_context(redis_server(folder / f"{own.name}-redis"))
                report["cells"].append(measure(served, own, url, flags=flags, count=given.count))
                sys.stdout.write(f"{json.dumps(report['cells'][-1])}\n")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
