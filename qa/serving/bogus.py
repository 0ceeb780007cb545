"""Goal 10: keys that nobody has made leave nothing behind, neither state nor a line with their text."""

from __future__ import annotations

import gc
import random
import socket
import string
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import grpc

from qa.serving.h2 import PATH
from qa.serving.memory import MIB, resident
from qa.serving.rest import HOST, PATIENCE, ask, get, post, talk
from qa.serving.scenario import Check, none_of
from qa.serving.state import body_of, state_of
from queen.serve.access.auth import Authenticator
from queen.serve.access.key_store import FileKeys
from queen.serve.types import ServeError
from tests.support.grpc_stub import message
from tests.support.server import Server, started

MARK = "BoGuSkEy"  # in every key's text, so that one search finds them all
LETTERS = string.ascii_letters + string.digits + "_-"
ROOM = 16 * MIB  # that the server's memory may move by itself
LINES: dict[str, Any] = {"log_level": "debug", "access_log": True}  # as talkative as it gets
AT_ONCE = 8


def bogus_keys(seed: int, known: str) -> Iterator[str]:
    """Keys without end: most look like keys, some have the id of one that exists, some look like nothing."""
    chance = random.Random(seed)
    while True:
        number = f"{chance.getrandbits(64):016x}" if chance.random() < 0.8 else known
        secret = MARK + "".join(chance.choices(LETTERS, k=43 - len(MARK)))
        yield chance.choices([f"qk_{number}_{secret}", secret, f"{secret} {number}", f"qk_{secret}"], [17, 1, 1, 1])[0]


def run(folder: Path, quick: bool) -> list[Check]:
    """Bogus keys to the part that checks keys, and over the network to a server that logs all it can."""
    file = folder / "ledger.sqlite"
    with started(folder, ledger=f"sqlite:///{file}", **LINES) as server:
        checks = over_network(server, 5000 if quick else 50_000, file, file.with_name("ledger.sqlite-wal"))
    return checks + in_process(folder / "keys", 50_000 if quick else 1_000_000)


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that notes who failed."""
    with started(folder, module="qa.broken.noting", **LINES) as server:
        return over_network(server, 500)


def over_network(server: Server, count: int, *ledger: Path, room: float = ROOM) -> list[Check]:
    """Most over REST on connections that stay open, some over gRPC."""
    known = server.key.split("_")[1]
    ask(server.rest, post(body_of(), server.key))
    _rest_statuses(server, list(islice(bogus_keys(1, known), AT_ONCE * 20)))  # what the first requests need stays
    before, idle = state_of(server, *ledger), resident(server.process.pid)
    statuses = _rest_statuses(server, list(islice(bogus_keys(2, known), count)))
    codes = _grpc_codes(server, list(islice(bogus_keys(3, known), count // 10)))
    after, grown = state_of(server, *ledger), resident(server.process.pid) - idle
    shown = ask(server.rest, get("/metrics", server.admin)).body.decode()
    logged = server.stderr()
    still = ask(server.rest, post(body_of(), server.key)).status
    return [
        Check("refused over REST", statuses == {401: count}, str(dict(statuses))),
        Check("refused over gRPC", codes == {grpc.StatusCode.UNAUTHENTICATED: count // 10}, str(dict(codes))),
        none_of("changes of key store, ledger and standings", before.changes(after), len(before)),
        Check("growth of the server", grown < room, f"{grown / MIB:.1f} MiB after {count + count // 10} keys"),
        Check("keys in the log", MARK not in logged, f"{logged.count(MARK)} in {len(logged)} bytes"),
        Check("keys in the metrics", MARK not in shown),
        Check("a good key still opens", still == 200, str(still)),
    ]


def in_process(home: Path, count: int) -> list[Check]:
    """Many keys to the authenticator alone, counting every byte that Python allocates."""
    store = FileKeys(home)
    good, key = store.add("alice")
    auth = Authenticator(store)
    for text in islice(bogus_keys(4, key.id), 1000):
        _is_refused(auth, text)
    content = (home / "keys.json").read_bytes()
    gc.collect()
    tracemalloc.start()
    before, refused = tracemalloc.get_traced_memory()[0], 0
    for number, text in enumerate(islice(bogus_keys(5, key.id), count)):
        if number % 500 == 0:
            auth.refresh_once()
        refused += _is_refused(auth, text)
    del text
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    auth.refresh_once()
    return [
        Check("refused in the process", refused == count, f"{refused} of {count}"),
        Check("bytes of state they added", grown < 1 << 16, f"{grown} ({1000 * grown / count:.1f} for 1,000 keys)"),
        Check("the key file is the same", (home / "keys.json").read_bytes() == content),
        Check("a good key still opens it", auth.caller(f"Bearer {good}").client == "alice"),
    ]


def _is_refused(auth: Authenticator, text: str) -> bool:
    try:
        auth.caller(f"Bearer {text}")
    except ServeError as error:
        return error.status == 401
    return False


def _rest_statuses(server: Server, keys: list[str]) -> Counter[int]:
    """Statuses of requests with these keys."""
    body = body_of()

    def several(texts: list[str]) -> Counter[int]:
        statuses = Counter[int]()
        with socket.create_connection((HOST, server.rest), timeout=PATIENCE) as wire:
            for text in texts:
                statuses[talk(wire, post(body, text)).status] += 1
        return statuses

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(several, (keys[i::AT_ONCE] for i in range(AT_ONCE))), Counter[int]())


def _grpc_codes(server: Server, keys: list[str]) -> Counter[grpc.StatusCode]:
    codes = Counter[grpc.StatusCode]()
    with grpc.insecure_channel(f"{HOST}:{server.grpc}") as channel:
        call = channel.unary_unary(f"{PATH}ModelInfer")
        raw = message().SerializeToString()
        for text in keys:
            try:
                call(raw, metadata=(("authorization", f"Bearer {text}"),), timeout=PATIENCE)
                codes[grpc.StatusCode.OK] += 1
            except grpc.RpcError as error:
                codes[error.code()] += 1
    return codes
