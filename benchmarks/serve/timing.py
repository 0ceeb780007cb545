"""What a client can learn from the time that an answer takes, with each ledger, with and without what hides it.

    python benchmarks/serve/timing.py [--out results/timing/cpu-2-cores.json]     (five minutes; needs redis-server)

Four clients ask the same server in turn, as in goal 14 (`qa/serving/timing.py`): new questions, old ones a bit changed,
the same question again, and the questions of a client who has been accused and gets decoys. `tell` is the chance to say
from the times of two answers which of them was the honest, new one (0.5: none at all), `tell_medians` the same for
medians of a hundred answers, `more_us` how many microseconds the other kind takes more in the median. Loopback, one
request at a time, nothing else running: over a network there is more noise, and a patient client needs more questions.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose tests and scenarios this uses
sys.path.insert(0, str(Path(__file__).parent))

from run import machine
from servers import redis_server

from qa.serving.timing import DECOYS, alarms, ask_in_turn, clock_line, distances
from tests.support.server import started

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "--no-uniform --release-every 0": {"uniform": False, "release_every": 0},
    "--release-every 0": {"release_every": 0},
    "--release-every auto": {"release_every": "auto"},
}


def measure(folder: Path, ledger: str, flags: str, count: int) -> dict[str, Any]:
    """One server."""
    with started(folder, **DECOYS, **FLAGS[flags], ledger=ledger) as server:
        answers, clock = ask_in_turn(server, count), clock_line(server)
        if alarms(server) != 1:
            raise RuntimeError("expected the thief to be accused, and nobody else")
    return {
        "ledger": ledger.partition(":")[0],
        "flags": flags,
        "clock": {name: value for name, value in clock.items() if name.endswith("_ms")},
        "answers_a_kind": len(answers["new"]),
        "median_us": round(1e6 * float(np.median([answer.seconds for answer in answers["new"]])), 1),
        **distances(answers),
    }


def opened(store: str, folder: Path) -> contextlib.AbstractContextManager[str]:
    """The URL of a ledger in this folder."""
    if store == "redis":
        return redis_server(folder / "store")
    return contextlib.nullcontext("memory://" if store == "memory" else f"sqlite:///{folder}/ledger.sqlite")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="answers of each kind")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    Path("build").mkdir(exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "cells": []}
    with TemporaryDirectory(dir="build") as name:
        for store, flags in itertools.product(("memory", "sqlite", "redis"), FLAGS):
            folder = Path(name).resolve() / str(len(report["cells"]))
            folder.mkdir()
            with opened(store, folder) as ledger:
                report["cells"].append(measure(folder, ledger, flags, given.count))
            sys.stdout.write(f"{json.dumps(report['cells'][-1])}\n")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
