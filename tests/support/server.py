"""Real servers for tests that are their clients: in a process, in a thread, or on the event loop of the test.

Unless a test says otherwise, answers leave at once: to hold them back would cost every test time, and prove nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from torch import Tensor

from queen.ledger import Budget
from queen.serve.access.key_store import open_keys
from queen.serve.run import Ports, running
from queen.serve.service import Service
from queen.serve.settings import Settings, read_settings
from queen.serve.upstream.settings import GuardSettings
from tests.support.paths import ROOT
from tests.support.serving import inference_body, small_bundle
from tests.support.waiting import PATIENCE


@dataclass
class Endpoint:
    """Where a server listens, its keys, and ways to ask it."""

    home: Path
    ledger: str
    key: str  # of the client alice
    admin: str  # of the operator boss
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

    def new_key(self, name: str, groups: Sequence[str] = (), budget: Budget | None = None) -> str:
        store = open_keys(self.home, self.ledger)
        try:
            return store.add(name, groups, budget=budget)[0]
        finally:
            store.close()

    def get(self, path: str, key: str | None = None) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of a page."""
        return self._ask(path, key, None)

    def infer(self, x: Tensor, key: str | None = None) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of the answer to a batch; alice asks unless there is another key."""
        return self._ask("/v2/models/digits/infer", key or self.key, inference_body(x))

    def _ask(self, path: str, key: str | None, data: bytes | None) -> tuple[int, dict[str, str], Any]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            asked = urllib.request.Request(self.url + path, data, headers)
            with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
                return reply.status, dict(reply.headers), json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), json.load(error)


@dataclass(kw_only=True)
class Server(Endpoint):
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def stderr(self) -> str:
        return self.log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stderr().splitlines() if line.startswith("{")]

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)


@dataclass(kw_only=True)
class ThreadServer(Endpoint):
    """A server in a thread of this process."""

    service: Service
    loop: asyncio.AbstractEventLoop


def run_queen(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "queen", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env=env, check=False)


@contextmanager
def started(
    folder: Path,
    *,
    bundle: Path | None = None,
    patience: float = PATIENCE,
    module: str = "queen",
    command: str = "serve",
    **settings: Any,
) -> Iterator[Server]:
    """A server with a client key `alice` and an admin key `boss`; settings are those of `queen serve`."""
    home = Path(settings.pop("home", folder / "home"))
    ledger = settings.pop("ledger", "memory://")
    key, admin = _make_keys(home, ledger)
    flags = {"port": 0, "grpc_port": 0, "home": home, "ledger": ledger, "threads": 1, "release_every": 0, **settings}
    words = [sys.executable, "-m", module, command, str(bundle or small_bundle())]
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            words += [part for one in value for part in (flag, str(one))]
        else:
            words += [flag, str(value)]
    log = folder / f"server-{time.monotonic_ns()}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, cwd=ROOT, stderr=file, stdout=file, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    server = Server(home, ledger, key, admin, process=process, log=log)
    try:
        _wait(server, patience)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)


def _make_keys(home: Path, ledger: str) -> tuple[str, str]:
    keys = open_keys(home, ledger)
    try:
        return keys.add("alice")[0], keys.add("boss", admin=True)[0]
    finally:
        keys.close()


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
    given = {"bundle": small_bundle(), "home": home, "ledger": "memory://", "port": 0, "grpc_port": -1}
    kind = GuardSettings if any(name.startswith("upstream") for name in settings) else Settings
    service = Service.open(read_settings({**given, "release_every": 0, **settings}, kind=kind))
    async with running(service) as ports:
        yield service, ports


@contextmanager
def served_in_thread(home: Path, **settings: Any) -> Iterator[ThreadServer]:
    """The same on an event loop in another thread, with the keys of `started`: a start costs next to nothing."""
    ledger = settings.get("ledger", "memory://")
    key, admin = _make_keys(home, ledger)
    server: list[ThreadServer] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with running_service(home, **settings) as (service, ports):
            loop = asyncio.get_running_loop()
            server.append(ThreadServer(home, ledger, key, admin, ports.rest, ports.grpc, service=service, loop=loop))
            ready.set()
            await stop.wait()

    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()
    thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=loop_factory).run(serve()))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield server[0]
    finally:
        server[0].loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
    assert not thread.is_alive()
