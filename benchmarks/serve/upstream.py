"""What a guard in front of another server costs: asked directly and through the guard, in turn, inside one run.

    python benchmarks/serve/upstream.py --out results/upstream/cpu-2-cores.json      # some two minutes; needs kserve

The upstream is KServe's model server with the network of examples/upstream/kserve_model.py, so small that the figures
are those of servers and protocols, not of a network. Load, upstream and guards share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from load import ask
from run import machine
from sklearn.datasets import load_digits

from queen.serve.access.key_store import open_keys

ROOT = Path(__file__).parents[2]
REST, GRPC, GUARD = 18080, 18081, 18100
CONNECTIONS, SECONDS = (1, 16), 3.0
TRAIN = ROOT / "examples/mlserver/train.py"


@contextlib.contextmanager
def running(command: list[str], ready: str, log: Path) -> Iterator[None]:
    """A process, once a page of it answers."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)  # noqa: S603
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=1):  # noqa: S310
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def make_bodies() -> list[bytes]:
    """Requests of one row each, in JSON, never the same twice."""
    images = load_digits().data / 16
    generator = np.random.default_rng(0)
    bodies = []
    for number in range(4000):
        row = np.clip(images[600 + number % 1197] + generator.normal(0, 0.01, 64), 0, 1).astype(np.float32)
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": row.tolist()}
        bodies.append(json.dumps({"id": str(number), "inputs": [tensor]}).encode())
    return bodies


def measure(folder: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Figures of every way to ask, with every number of connections."""
    queen = [sys.executable, "-m", "queen"]
    subprocess.run([sys.executable, str(TRAIN), str(folder)], check=True)  # noqa: S603
    upstream = [
        sys.executable,
        str(ROOT / "examples/upstream/kserve_model.py"),
        "--weights",
        str(folder / "weights.npz"),
    ]
    upstream += ["--http_port", str(REST), "--grpc_port", str(GRPC)]
    ways = {"direct": f"http://127.0.0.1:{REST}"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(upstream, f"http://127.0.0.1:{REST}/v2/health/ready", folder / "kserve.log"))
        protect = ["protect", "--upstream", f"http://127.0.0.1:{REST}", "--data", str(folder / "train.npz")]
        protect += ["--calibration", str(folder / "held_out.npz"), "--out", str(folder / "digits"), "--json"]
        subprocess.run([*queen, *protect], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        store = open_keys(folder / "home", f"sqlite:///{folder}/ledger.sqlite")
        keys = [store.add(f"client {i}")[0] for i in range(max(CONNECTIONS))]
        store.close()
        addresses = (f"http://127.0.0.1:{REST}", f"grpc://127.0.0.1:{GRPC}")
        for number, (name, address) in enumerate(
            zip(("guarded over REST", "guarded over gRPC"), addresses, strict=True)
        ):
            guard = [*queen, "guard", str(folder / "digits"), "--upstream", address, "--upstream-model", "digits"]
            guard += ["--home", str(folder / "home"), "--ledger", f"sqlite:///{folder}/{number}.sqlite"]
            guard += ["--port", str(GUARD + number), "--grpc-port", "-1", "--release-every", "0"]
            guard += ["--extra-answers", "1000000", "--threads", "1"]
            ways[name] = f"http://127.0.0.1:{GUARD + number}"
            stack.enter_context(running(guard, f"{ways[name]}/v2/health/ready", folder / f"guard-{number}.log"))
        bodies = make_bodies()
        return [measure_cell(ways, bodies, keys, count, rounds, seconds) for count in CONNECTIONS]


def measure_cell(
    ways: dict[str, str], bodies: list[bytes], keys: list[str], connections: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """All ways in turn, every other round in reverse; ratios are to asking directly in the same round."""
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            url = f"{ways[name]}/v2/models/digits/infer"
            headers = ["Content-Type: application/json"]
            first = 997 * number
            told = ask(url, bodies, keys=keys, headers=headers, connections=connections, seconds=seconds, first=first)
            figures[name].append(asyncio.run(told))
    cells = {}
    for name, of in figures.items():
        pairs = list(zip(of, figures["direct"], strict=True))
        cells[name] = {
            "requests_per_second": median(one["requests_per_second"] for one in of),
            "latency_ms": {p: median(one["latency_ms"][p] for one in of) for p in ("p50", "p99")},
            "errors": sum(one["errors"] for one in of),
            "rate_ratio": median(one["requests_per_second"] / direct["requests_per_second"] for one, direct in pairs),
            "p50_ratio": median(one["latency_ms"]["p50"] / direct["latency_ms"]["p50"] for one, direct in pairs),
        }
    return {"connections": connections, "rounds": rounds, "ways": cells}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    Path("build").mkdir(exist_ok=True)
    report = {"machine": machine()}
    with tempfile.TemporaryDirectory(dir="build", prefix="upstream-") as folder:
        report["cells"] = measure(Path(folder).resolve(), options.rounds, options.seconds)
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
