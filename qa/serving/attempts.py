"""Clients that ask a good question over REST or gRPC and count the replies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from qa.serving.h2 import PATH
from qa.serving.rest import HANG, HOST, ask, get, post
from qa.serving.state import body_of
from tests.support.grpc_stub import message
from tests.support.server import Server
from tests.support.serving import digits

PATIENCE = 60.0
AT_ONCE = 8
CODES = {
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.DEADLINE_EXCEEDED: HANG,
}


@dataclass
class Tally:
    """Statuses of attempts, and those 503 that did not say when to come again."""

    statuses: Counter[int] = field(default_factory=Counter)
    without_retry: int = 0

    @property
    def answered(self) -> int:
        """Attempts that got an answer."""
        return self.statuses[200]

    def add(self, status: int, retry_after: str | None) -> None:
        """Count one."""
        self.statuses[status] += 1
        self.without_retry += status == 503 and retry_after is None

    def __str__(self) -> str:
        """What people want to know."""
        return ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))


def attempt(server: Server, count: int, *, seconds: float = 0.0) -> Tally:
    """Ask `count` times, half over gRPC, several at once; spread over some seconds."""
    tally = Tally()
    with grpc.insecure_channel(f"{HOST}:{server.grpc}") as channel, ThreadPoolExecutor(AT_ONCE) as pool:

        def one(number: int) -> tuple[int, str | None]:
            if seconds:
                time.sleep(seconds * min(AT_ONCE, count) / count)
            return _over_grpc(channel, server.key, number) if number % 2 else _over_rest(server, number)

        for status, retry_after in pool.map(one, range(count)):
            tally.add(status, retry_after)
    return tally


def is_ready(server: Server) -> bool:
    """What the server says to a load balancer."""
    return ask(server.rest, get("/v2/health/ready"), patience=PATIENCE).status == 200


def wait_until(server: Server, *, ready: bool, seconds: float = PATIENCE) -> float | None:
    """Seconds until the server says that it is ready, or that it is not; None if that never happens."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        if is_ready(server) == ready:
            return passed
        time.sleep(0.05)
    return None


def total(tallies: Iterable[Tally]) -> Counter[int]:
    """All statuses together."""
    return sum((tally.statuses for tally in tallies), Counter[int]())


def _over_rest(server: Server, number: int) -> tuple[int, str | None]:
    reply = ask(server.rest, post(body_of(number % 200), server.key), patience=PATIENCE)
    return reply.status, reply.headers.get("retry-after")


def _over_grpc(channel: grpc.Channel, key: str, number: int) -> tuple[int, str | None]:
    call = channel.unary_unary(f"{PATH}ModelInfer")
    x = digits()[number % 200 : number % 200 + 1].numpy()
    try:
        call(message(x).SerializeToString(), metadata=(("authorization", f"Bearer {key}"),), timeout=PATIENCE)
    except grpc.RpcError as error:
        return CODES.get(error.code(), 500), dict(error.trailing_metadata() or ()).get("retry-after")
    return 200, None
