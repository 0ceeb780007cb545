"""Goal 18: a server that is told to stop answers what it has accepted, and goes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from qa.serving.faults import queries_in
from qa.serving.h2 import PATH, call_fields, frame, opened, start
from qa.serving.rest import HANG, HOST, INFER, SILENCE, head, post, talk
from qa.serving.scenario import Check
from qa.serving.state import body_of
from tests.support import redis_server
from tests.support.grpc_stub import message
from tests.support.server import Server, started
from tests.support.serving import digits

SECONDS = 5.0  # to be gone
LOAD = 1.5  # seconds of load before the end
PATIENCE = 60.0
KEEPERS, CALLERS, COMERS = 6, 4, 2  # clients on one REST connection, over gRPC, and on a new connection each time


@dataclass
class Load:
    """Clients that ask until they are no longer answered."""

    server: Server
    outcomes: Counter[str] = field(default_factory=Counter)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str) -> None:
        """Count what one request came to."""
        with self.lock:
            self.outcomes[what] += 1

    def keep(self) -> None:
        """Ask on one connection until it is closed."""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.server.rest), timeout=PATIENCE) as wire:
            while not self.ended.is_set() and self._ask(wire):
                pass

    def come(self) -> None:
        """Ask on a new connection each time until none is taken."""
        while not self.ended.is_set():
            try:
                wire = socket.create_connection((HOST, self.server.rest), timeout=PATIENCE)
            except OSError:
                return
            with wire:
                self._ask(wire)

    def call(self) -> None:
        """Ask over gRPC until the server is gone."""
        raw = message(digits()[:1].numpy()).SerializeToString()
        key = (("authorization", f"Bearer {self.server.key}"),)
        with grpc.insecure_channel(f"{HOST}:{self.server.grpc}") as channel:
            method = channel.unary_unary(f"{PATH}ModelInfer")
            while not self.ended.is_set():
                try:
                    method(raw, metadata=key, timeout=PATIENCE)
                    self.note("200")
                except grpc.RpcError as error:
                    self.note(error.code().name)
                    return

    def _ask(self, wire: socket.socket) -> bool:
        """Whether it was answered; one whose connection was closed before a word came was not accepted."""
        reply = talk(wire, post(body_of(), self.server.key))
        torn = reply.status == SILENCE and reply.body
        names = {SILENCE: "torn" if torn else "closed", HANG: "hang"}
        self.note(names.get(reply.status, str(reply.status)))
        return reply.status == 200 and reply.headers.get("connection") != "close"


def run(folder: Path, quick: bool) -> list[Check]:
    """Again and again, with a file and with Redis, also with clients that would keep the server busy for ever."""
    checks = list[Check]()
    for number in range(1 if quick else 10):
        checks += ended(folder / f"file-{number}", f"sqlite:///{folder / f'ledger-{number}'}", hangers=number % 2 == 0)
    if not quick and shutil.which("redis-server"):
        redis = redis_server.redis_server(folder / "redis")
        try:
            checks += ended(folder / "with-redis", redis.url, hangers=True)
        finally:
            redis.kill()
    return checks


def control(folder: Path, quick: bool) -> list[Check]:
    """The same with a server that goes without a word."""
    return ended(folder / "file", f"sqlite:///{folder / 'ledger'}", module="qa.broken.abrupt")


def ended(folder: Path, url: str, *, hangers: bool = False, within: float = SECONDS, **settings: Any) -> list[Check]:
    """SIGTERM under load; every answer is on record, and every record was answered."""
    folder.mkdir()
    with started(folder, ledger=url, **settings) as server:
        load = Load(server)
        kinds = [load.keep] * KEEPERS + [load.call] * CALLERS + [load.come] * COMERS
        threads = [threading.Thread(target=kind) for kind in kinds]
        for thread in threads:
            thread.start()
        with contextlib.ExitStack() as stack:
            for wire in _hanging(server) if hangers else ():
                stack.enter_context(wire)
            time.sleep(LOAD)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            code = server.process.wait(60)
            seconds = time.monotonic() - begin
        load.ended.set()
        for thread in threads:
            thread.join(PATIENCE)
        alive = sum(thread.is_alive() for thread in threads)
    answered, recorded = load.outcomes["200"], queries_in(url)
    name = f"{url.partition(':')[0]}{', with clients that hang on' if hangers else ''}"
    spoilt = sum(load.outcomes[outcome] for outcome in ("torn", "hang", "500", "INTERNAL", "UNKNOWN")) + alive
    return [
        Check(f"{name}: answered is recorded", 0 < answered == recorded, f"{answered} answers, {recorded} on record"),
        Check(f"{name}: nothing torn", spoilt == 0, str(dict(load.outcomes))),
        Check(f"{name}: gone in time", code == 0 and seconds < within, f"{seconds:.2f} s, exit code {code}"),
    ]


def _hanging(server: Server) -> list[socket.socket]:
    """Clients in the middle of something: silent, half a head, half a body, half a call."""
    key = server.key
    half = start() + frame(4, 1, 0) + opened(call_fields(key)) + frame(0, 0, 1, b"\x00\x00\x00\xff\xff")
    texts = [
        (server.rest, b""),
        (server.rest, b"POST /v2"),
        (server.rest, head("POST", INFER, f"Authorization: Bearer {key}", length=1000) + b"{"),
        (server.grpc, b""),
        (server.grpc, half),
    ]
    wires = []
    for port, text in texts:
        wires.append(socket.create_connection((HOST, port), timeout=PATIENCE))
        wires[-1].sendall(text)
    return wires
