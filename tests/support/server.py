"""Real servers for tests that are their clients: in a process of their own, or on the event loop of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queen.serve.access.key_store import open_keys
from queen.serve.run import Ports, running
from queen.serve.service import Service
from queen.serve.settings import read_settings
from tests.support.paths import ROOT
from tests.support.serving import small_bundle
from tests.support.waiting import PATIENCE


@dataclass
class Server:
    """Where a server listens, keys for it, and its process."""

    process: subprocess.Popen[bytes]
    home: Path
    log: Path
    key: str = ""
    admin: str = ""
    rest: int = 0
    grpc: int = 0
    metrics: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def admin_bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin}"}

    def stderr(self) -> str:
        return self.log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stderr().splitlines() if line.startswith("{")]

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)


@contextmanager
def started(
    folder: Path, *, bundle: Path | None = None, patience: float = PATIENCE, module: str = "queen", **settings: Any
) -> Iterator[Server]:
    """A server with a client key `alice` and an admin key; settings are those of `queen serve`."""
    home = Path(settings.pop("home", folder / "home"))
    ledger = settings.pop("ledger", "memory://")
    keys = open_keys(home, ledger)
    key, _ = keys.add("alice")
    admin, _ = keys.add("boss", admin=True)
    keys.close()
    flags = {"port": 0, "grpc_port": 0, "home": home, "ledger": ledger, "threads": 1, **settings}
    command = [sys.executable, "-m", module, "serve", str(bundle or small_bundle())]
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            command.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            command += [part for one in value for part in (flag, str(one))]
        else:
            command += [flag, str(value)]
    log = folder / f"server-{time.monotonic_ns()}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=file, stdout=file, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    server = Server(process, home, log, key, admin)
    try:
        _wait(server, patience)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)


def _wait(server: Server, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        for line in server.lines():
            if line["event"] == "serving":
                server.rest, server.grpc, server.metrics = line["rest"], line["grpc"], line.get("metrics", 0)
                return
        if server.process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{server.stderr()}")


@asynccontextmanager
async def running_service(home: Path, **settings: Any) -> AsyncIterator[tuple[Service, Ports]]:
    """A server on this event loop, with a ledger in memory and no gRPC unless the settings say otherwise."""
    given = {"bundle": small_bundle(), "home": home, "ledger": "memory://", "port": 0, "grpc_port": -1, **settings}
    service = Service.open(read_settings(given))
    async with running(service) as ports:
        yield service, ports
