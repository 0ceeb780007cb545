"""A real redis-server for tests: on a free port of this machine, durable unless asked otherwise, gone afterwards."""

from __future__ import annotations

import atexit
import secrets
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, wait_for

# Below those that the system gives to clients, so that a port is still free when its server is started again; the
# servers of a cluster also talk on this number plus 10,000.
PORTS = range(10_000, 22_000)
DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": "", "appenddirname": "aof"}


def _mortal() -> list[str]:
    """What to put before a command so that killed tests leave no server behind, where there is such a thing."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


@dataclass
class RedisServer:
    """A redis-server process; `start` after `kill` serves what was on disk, on the same port.

    Start it from a thread that lives as long as it shall, such as the one that pytest runs tests in.
    """

    folder: Path
    port: int
    config: dict[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object):
        import redis

        return redis.Redis(port=self.port, socket_timeout=PATIENCE, **options)

    def start(self) -> None:
        options = [part for name, value in self.config.items() for part in (f"--{name}", value)]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), *options]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen([*_mortal(), *command], stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def _wait(self) -> None:
        import redis

        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with self.client() as client:
                    client.ping()
                    assert client.info("server")["process_id"] == self.process.pid, "the port was taken"
                return
            except redis.exceptions.RedisError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"redis-server: {(self.folder / 'log.txt').read_text()[-2000:]}") from error
                time.sleep(0.01)

    def kill(self) -> None:
        """As a power cut would (kill -9)."""
        self.process.kill()
        self.process.wait()


def redis_server(folder: Path, **config: str) -> RedisServer:
    """Start a server whose files are in `folder`; options of redis.conf have _ for -. Kill it when done."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt install redis-server), so nothing is tested with it")
    folder.mkdir(parents=True, exist_ok=True)
    named = {name.replace("_", "-"): value for name, value in config.items()}
    for attempt in count(1):
        port = secrets.choice(PORTS)
        try:
            return RedisServer(folder, port, {**DURABLE, **named})
        except (RuntimeError, AssertionError):
            if attempt == 5:
                raise
    raise AssertionError


def redis_cluster(folder: Path, nodes: int = 1) -> list[RedisServer]:
    """A cluster of primaries that share all slots evenly; what one of them serves does not hang on the others."""
    options = {"cluster_enabled": "yes", "cluster_require_full_coverage": "no", "cluster_node_timeout": "1000"}
    servers: list[RedisServer] = []
    try:
        for number in range(nodes):
            servers.append(redis_server(folder / str(number), **options))
            with servers[-1].client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                first, last = 16384 * number // nodes, 16384 * (number + 1) // nodes - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        wait_for(lambda: all(_knows(server, nodes) for server in servers))
    except BaseException:
        for server in servers:
            server.kill()
        raise
    return servers


def _knows(server: RedisServer, nodes: int) -> bool:
    with server.client() as client:
        info = client.execute_command("CLUSTER", "INFO")
        return (
            b"cluster_state:ok" in info
            and b"cluster_size:%d\r" % nodes in info
            and (len(client.execute_command("CLUSTER", "SLOTS")) == nodes)
        )


@cache
def _shared(cluster: bool) -> RedisServer:
    memory = Path("/dev/shm")  # where there is one: a disk would wait for every answer
    folder = Path(tempfile.mkdtemp(prefix="queen-redis-", dir=memory if memory.is_dir() else None))
    server = redis_cluster(folder)[0] if cluster else redis_server(folder)

    def stop() -> None:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return server


def shared_server(*, cluster: bool = False) -> RedisServer:
    """One server for all tests of this process: use a prefix of your own, or `flushall`."""
    return _shared(cluster)
