"""One server of several, as a process: it answers the queries of one client from a bundle and a ledger that it shares.

    python -m tests.support.replica BUNDLE LEDGER QUERIES.npy

Every line that comes in is the number of a query; every line that goes out is what happened, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from queen import load
from queen.errors import RefusedError
from queen.ledger import open_ledger
from tests.support.paths import ROOT

CLIENT = "client"
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "DNNL_MAX_CPU_ISA": "SSE41"}
"""Settings of an old CPU for torch; numpy wants the names of what it must do without."""


def newer_than_sse() -> list[str]:
    """The instructions of this CPU that numpy chooses at run time."""
    features: dict[str, bool] = np._core._multiarray_umath.__cpu_features__
    chosen: list[str] = np._core._multiarray_umath.__cpu_dispatch__
    return [name for name in chosen if features.get(name)]


def main(bundle: str, ledger: str, queries: str) -> None:
    guard = load(bundle, ledger=open_ledger(ledger))
    images = torch.from_numpy(np.load(queries))
    test = guard.bundle.test
    say({"test": test.id, "numpy": newer_than_sse(), "torch": torch.backends.cpu.get_cpu_capability()})
    for line in sys.stdin:
        row = int(line)
        try:
            reply = guard.answer(images[row : row + 1], client=CLIENT)
        except RefusedError as error:
            reply = error.reply
        standing = guard.ledger.standing(CLIENT)
        say({"alarmed": bool(reply.alarmed[0]), "wealth": standing.wealth, "number": guard.ledger.number_of(test)})


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


class Replica:
    """A running one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.facts = self._hear()

    def ask(self, row: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{row}\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the replica has died"
        return json.loads(line)


@contextmanager
def replica(bundle: Path, ledger: str, queries: Path, *, old_cpu: bool = False) -> Iterator[Replica]:
    """Start one, on a CPU as it is or as if it were an old one."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    if old_cpu:
        environment |= PLAIN | {"NPY_DISABLE_CPU_FEATURES": " ".join(newer_than_sse())}
    command = [sys.executable, "-m", "tests.support.replica", str(bundle), ledger, str(queries)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Replica(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
