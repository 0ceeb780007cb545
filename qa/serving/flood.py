"""A client that floods: `python -m qa.serving.flood CORE PORT FILE CONNECTIONS [KEY]`, until its standard input ends.

Every connection sends the request in FILE as soon as the last one is answered, and waits for nobody, whatever the
answer says; with a KEY the file holds a gRPC message, and there are so many calls at a time. Prints a line when all
have begun, and in the end how many answers of each status came. It runs on one core with the lowest priority, so that
clients on the same core are slowed down by the server alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

from qa.serving.rest import HOST

METHOD = "/inference.GRPCInferenceService/ModelInfer"
CALLS = 64  # at a time on one connection


class Connection(asyncio.Protocol):
    """Sends the same request for ever."""

    def __init__(self, request: bytes, statuses: Counter[str]) -> None:
        self._request, self._statuses = request, statuses
        self._head, self._missing = b"", 0  # the beginning of an answer, then how many bytes of it have not come yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Send the next request when an answer is complete."""
        if self._missing:
            self._missing -= len(data)
        else:
            head, end, rest = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            self._statuses[head[9:12].decode()] += 1
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._head, self._missing = b"", int(length) - len(rest)
        if not self._missing and not self._transport.is_closing():
            self._transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        """Count it."""
        self._statuses["lost"] += 1


async def flood(port: int, request: bytes, connections: int) -> Counter[str]:
    """Flood over REST; returns how many answers of each status came."""
    loop, statuses = asyncio.get_running_loop(), Counter[str]()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(request, statuses), HOST, port)
    await until_the_end()
    return statuses.copy()


async def flood_grpc(port: int, message: bytes, calls: int, key: str) -> Counter[str]:
    """Flood over gRPC; returns how many calls ended with each code."""
    from grpc import aio  # noqa: PLC0415  (a flood over REST starts faster without)

    statuses = Counter[str]()

    async def call_for_ever(channel: aio.Channel) -> None:
        infer = channel.unary_unary(METHOD)
        while True:
            try:
                await infer(message, metadata=(("authorization", f"Bearer {key}"),))
                statuses["OK"] += 1
            except aio.AioRpcError as error:
                statuses[error.code().name] += 1

    channels = [aio.insecure_channel(f"{HOST}:{port}", [("channel", i)]) for i in range(1 + calls // CALLS)]
    tasks = [asyncio.create_task(call_for_ever(channels[i % len(channels)])) for i in range(calls)]
    await until_the_end()
    for task in tasks:
        task.cancel()
    return statuses.copy()


async def until_the_end() -> None:
    """Say that the flood has begun, and wait until standard input ends."""
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main(core: str, port: str, file: str, connections: str, key: str = "") -> None:
    """Flood as the command line says."""
    os.sched_setaffinity(0, {int(core)})
    os.nice(19)
    request = Path(file).read_bytes()
    flooding = (
        flood_grpc(int(port), request, int(connections), key) if key else flood(int(port), request, int(connections))
    )
    sys.stdout.write(json.dumps(asyncio.run(flooding)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
