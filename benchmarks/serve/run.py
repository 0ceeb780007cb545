"""How fast `queen serve` answers, and what protection costs: every comparison inside one run, round by round.

    python benchmarks/serve/run.py [--quick] [--only digits] [--out results/serve/cpu-2-cores.json]

Servers of one comparison run side by side and are asked in turn (A B C, C B A, ...), so that a busy moment hits all;
figures are medians of the rounds, ratios are medians of the rounds' ratios. Under ten minutes; --quick is rough.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scrape
import torch
from rich.console import Console
from servers import HERE, Server, lit_server, queen_server, redis_server
from summary import check_targets, show

from models import Served, make_digits, make_vgg
from queen.bundle.bundle import Bundle
from queen.guard import load
from queen.serve.protocol.rest_read import read_query
from queen.serve.protocol.rest_write import write_answer
from queen.serve.types import describe

PACKAGES = ("queen", "torch", "numpy", "starlette", "uvicorn", "uvloop", "httptools", "orjson", "redis", "litserve")
console = Console(stderr=True)


@dataclass(frozen=True)
class Comparison:
    """Servers of one model, asked in turn; `servers` are "policy ledger", or litserve.

    `release_every` is when answers leave: at once where the server itself is measured, else as it is by default.
    """

    make: Callable[[Path, int], Served]
    questions: int
    servers: tuple[str, ...]
    connections: tuple[int, ...]
    threads: int
    release_every: str
    seconds: float


COMPARISONS: Mapping[str, Comparison] = {
    "digits": Comparison(
        make_digits,
        8192,
        ("none memory", "sentinel memory", "sentinel sqlite", "sentinel redis", "litserve"),
        connections=(32, 1),
        threads=1,  # for a network this small a second thread only waits
        release_every="0",
        seconds=4.0,
    ),
    "vgg16_bn": Comparison(
        make_vgg,
        1024,
        ("none memory", "sentinel sqlite", "sentinel redis"),
        connections=(32,),
        threads=0,
        release_every="auto",
        seconds=8.0,
    ),
}


def compare(name: str, folder: Path, *, rounds: int, seconds: float | None) -> Iterator[dict[str, Any]]:
    """One cell after the other: all servers at each number of connections."""
    what = COMPARISONS[name]
    served = what.make(folder, what.questions)
    wire = wire_ms(served)
    with contextlib.ExitStack() as stack:
        servers = {
            side: stack.enter_context(start(side, served, folder, what, stack))
            for side in what.servers
            if is_possible(side)
        }
        for server in servers.values():
            server.wait()
        for connections in what.connections:
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in servers}
            for number in range(rounds):
                for side in servers if number % 2 == 0 else reversed(servers):
                    first = number * what.questions // rounds
                    console.print(f"{name}: round {number + 1} of {rounds}, {connections} connections, {side}")
                    time_each = seconds or what.seconds
                    runs[side].append(measure(servers[side], served, connections, time_each, first))
            for side, each in runs.items():
                yield {
                    "model": name,
                    "server": side,
                    "connections": connections,
                    "release_every": what.release_every if side.startswith("sentinel") else None,
                    "median": medians(each),
                    "wire_ms": wire if side != "litserve" else None,
                    "rounds": each,
                }


def is_possible(side: str) -> bool:
    """Whether what a server needs is installed; if not, say so."""
    if side == "litserve" and find_spec("litserve") is None:
        console.print("SKIPPED litserve: it is not installed (pip install litserve)", style="bold red")
        return False
    if side.endswith("redis") and shutil.which("redis-server") is None:
        console.print(f"SKIPPED {side}: no redis-server here (apt install redis-server)", style="bold red")
        return False
    return True


def start(
    side: str, served: Served, folder: Path, what: Comparison, stack: contextlib.ExitStack
) -> contextlib.AbstractContextManager[Server]:
    """A server of a comparison."""
    console.print(f"starting {served.bundle.name}: {side}")
    own = folder / f"{served.bundle.name} {side}"
    if side == "litserve":
        return lit_server(served, own)
    policy, _, kind = side.partition(" ")
    if kind == "redis":
        ledger = stack.enter_context(redis_server(own.with_name(f"{own.name} store")))
    else:
        ledger = {"memory": "memory://", "sqlite": f"sqlite:///{own / 'ledger.sqlite'}"}[kind]
    clients = max(what.connections)
    options: dict[str, Any] = {"policy": policy, "ledger": ledger, "threads": what.threads, "clients": clients}
    return queen_server(served, own, **options, flags=["--release-every", what.release_every])


def measure(server: Server, served: Served, connections: int, seconds: float, first: int) -> dict[str, Any]:
    """Ask one server for a while: what the clients saw, what it cost, and what the server counted."""
    command = load_command(server.url, server.keys, served, connections, seconds, first)
    before, busy = server.counters(), server.cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"load.py failed:\n{done.stderr[-2000:]}\n{server.log.read_text()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    result["server_cpu_ms"] = 1000 * (server.cpu_seconds() - busy) / result["sent"]
    if server.metrics:
        result["server"] = scrape.figures(scrape.changes(before, server.counters()))
    return result


def load_command(
    url: str, keys: Path | None, served: Served, connections: int, seconds: float, first: int
) -> list[str]:
    """The command that asks a server for so many seconds, from question number `first` on; it prints JSON."""
    command = [sys.executable, str(HERE / "load.py"), url, "--bodies", str(served.questions), "--json"]
    command += ["--connections", str(connections), "--seconds", str(seconds), "--warm-up", str(seconds / 4)]
    command += ["--first", str(first), "--header", "Content-Type: application/json"]
    command += ["--keys", str(keys)] if keys else []
    command += ["--body-size", str(served.body_size)] if served.body_size else []
    for header in served.headers:
        command += ["--header", header]
    return command


def medians(each: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every figure over the rounds; errors are added up."""
    first = each[0]
    result: dict[str, Any] = {"errors": sum(one["errors"] for one in each)}
    for name, value in first.items():
        if isinstance(value, dict) and name != "statuses":
            result[name] = medians([{"errors": 0, **one[name]} for one in each])
            del result[name]["errors"]
        elif isinstance(value, int | float) and name != "errors":
            result[name] = median(one[name] for one in each)
    return result


def wire_ms(served: Served) -> dict[str, float]:
    """Milliseconds to read one of the requests and to write its answer, measured in this process."""
    bundle: Bundle = load(served.bundle).bundle
    spec = describe(bundle, served.bundle.name)
    data = served.questions.read_bytes()
    bodies = data[: served.body_size] if served.body_size else data.partition(b"\n")[0]
    length = int(served.headers[0].split()[1]) if served.headers else None
    query = read_query(bodies, length, spec, max_rows=1)
    answer = np.full((1, spec.classes), 1 / spec.classes, np.float32)
    return {
        "read": each_ms(lambda: read_query(bodies, length, spec, max_rows=1)),
        "write": each_ms(lambda: write_answer(query, answer, spec)),
    }


def each_ms(function: Callable[[], object], repeats: int = 2000) -> float:
    """Median milliseconds of a call."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return 1000 * median(seconds)


def machine() -> dict[str, Any]:
    """Where this was measured, and with what."""
    names = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    if shutil.which("redis-server"):
        text = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S607
        versions["redis-server"] = text.split("v=")[1].split()[0]
    return {
        "cores": os.cpu_count(),
        "processor": names[0] if names else platform.machine(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "versions": versions,
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of one second a cell")
    parser.add_argument("--only", choices=list(COMPARISONS), help="one model only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, None)
    report: dict[str, Any] = {"quick": options.quick, "machine": machine(), "cells": []}
    if report["machine"]["load_before"] > 0.5:
        console.print("this machine is busy: only ratios mean something", style="bold red")
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build", prefix="serve-") as folder:  # on a disk: commits must cost something
        for name in [options.only] if options.only else COMPARISONS:
            report["cells"] += compare(name, Path(folder).resolve(), rounds=rounds, seconds=seconds)
    report["targets"] = check_targets(report["cells"])
    show(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
