"""Real upstreams for tests: the digits network of `tests.support.serving` on KServe's model server, in a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from tests.support import serving
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE


def write_weights(model: nn.Module, path: Path) -> None:
    """The layers of the digits network as an .npz file, replaced in one step."""
    first, last = (layer for layer in model if isinstance(layer, nn.Linear))
    arrays = {"w1": first.weight, "b1": first.bias, "w2": last.weight, "b2": last.bias}
    new = path.with_name("new.npz")
    np.savez(new, **{name: tensor.detach().numpy() for name, tensor in arrays.items()})
    new.replace(path)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@dataclass
class Upstream:
    """Where KServe's server listens, and the files that say what it does."""

    folder: Path
    rest_port: int
    grpc_port: int
    process: subprocess.Popen[bytes]

    @property
    def rest(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def grpc(self) -> str:
        return f"grpc://127.0.0.1:{self.grpc_port}"

    def url(self, scheme: str) -> str:
        return {"http": self.rest, "grpc": self.grpc}[scheme]

    def behave(self, mode: str = "well") -> None:
        new = self.folder / "new mode"
        new.write_text(mode)
        new.replace(self.folder / "mode")

    def swap(self, seed: int) -> None:
        """Let another network answer, which was trained from this seed."""
        write_weights(serving.trained(seed), self.folder / "weights.npz")


@contextmanager
def kserve_upstream(folder: Path, *, rest_port: int = 0, grpc_port: int = 0) -> Iterator[Upstream]:
    rest_port, grpc_port = rest_port or free_port(), grpc_port or free_port()
    weights = folder / "weights.npz"
    write_weights(serving.trained(), weights)
    command = [sys.executable, "-m", "tests.support.oip_server", "--weights", str(weights)]
    command += ["--http_port", str(rest_port), "--grpc_port", str(grpc_port)]
    with (folder / "upstream.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
        )
    upstream = Upstream(folder, rest_port, grpc_port, process)
    upstream.behave()
    try:
        _wait(upstream)
        yield upstream
    finally:
        process.kill()
        process.wait(PATIENCE)


def _wait(upstream: Upstream) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and upstream.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{upstream.rest}/v2/models/digits/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError((upstream.folder / "upstream.log").read_text())
