"""The servers that are compared, each as a process group of its own on a free port of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models import Served
from queen.serve.access.key_store import open_keys

HERE = Path(__file__).parent
PATIENCE = 120.0  # seconds that a start may take on a busy machine
TICKS = os.sysconf("SC_CLK_TCK")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", "")


@dataclass
class Server:
    """A server process and, once it is ready, how to ask it; `metrics` is the port of its counters, 0 without any."""

    process: subprocess.Popen[bytes]
    log: Path
    is_ready: Callable[[], bool] = lambda: True
    url: str = ""
    keys: Path | None = None
    metrics: int = 0

    def wait(self) -> None:
        """Until it is ready."""
        deadline = time.monotonic() + PATIENCE
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.process.args!r} did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def cpu_seconds(self) -> float:
        """Processor time of all its processes so far."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # gone by now
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid:  # its process group
                    total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def counters(self) -> str:
        """Its /metrics, empty if it has none."""
        if not self.metrics:
            return ""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30) as reply:
            return str(reply.read(), "utf-8")


@contextlib.contextmanager
def spawned(command: list[str], log: Path) -> Iterator[Server]:
    """A process group that ends with this block."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
    try:
        yield Server(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of a Redis that forgets nothing it acknowledged."""
    binary, port = shutil.which("redis-server"), free_port()
    if binary is None:
        raise FileNotFoundError("redis-server")
    folder.mkdir()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *DURABLE]
    with spawned(command, folder / "redis.log") as server:
        server.is_ready = lambda: _connects(port)
        server.wait()
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def queen_server(
    served: Served, folder: Path, *, policy: str, ledger: str, threads: int, clients: int, flags: Sequence[str] = ()
) -> Iterator[Server]:
    """`queen serve` with a key for every client, on its way up; `flags` are more of its own."""
    folder.mkdir()
    keys = open_keys(folder, ledger)
    (folder / "keys.txt").write_text("\n".join(keys.add(f"client {i}")[0] for i in range(clients)))
    keys.close()
    command = [sys.executable, "-m", "queen", "serve", str(served.bundle), "--policy", policy, "--ledger", ledger]
    command += ["--home", str(folder), "--port", "0", "--grpc-port", "-1", "--metrics-port", "0"]
    command += ["--threads", str(threads), "--log-format", "json", *flags]
    with spawned(command, folder / "server.log") as server:
        server.keys = folder / "keys.txt"

        def is_ready() -> bool:
            for line in server.log.read_text().rpartition("\n")[0].splitlines():  # whole lines only
                if line.startswith("{") and (said := json.loads(line))["event"] == "serving":
                    server.url = f"http://127.0.0.1:{said['rest']}/v2/models/{served.bundle.name}/infer"
                    server.metrics = said["metrics"]
            return bool(server.url)

        server.is_ready = is_ready
        yield server


@contextlib.contextmanager
def lit_server(served: Served, folder: Path) -> Iterator[Server]:
    """LitServe with the same model and the same requests; it knows no keys."""
    folder.mkdir()
    port = free_port()
    command = [sys.executable, str(HERE / "lit.py"), str(served.bundle), str(port)]
    with spawned(command, folder / "server.log") as server:
        server.is_ready = lambda: _is_up(f"http://127.0.0.1:{port}/health")
        server.url = f"http://127.0.0.1:{port}/predict"
        yield server


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _connects(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310
            return bool(reply.status == 200)
    except OSError:
        return False
