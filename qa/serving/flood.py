"""A client that floods: `python -m qa.serving.flood PORT KEY CONNECTIONS ROWS CORE`, until its standard input ends.

Every connection sends a request of so many rows as soon as the last one is answered, and waits for nobody, whatever the
answer says. Prints how many answers of each status came. It runs on one core with the lowest priority, so that clients
on the same core are slowed down by the server alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter

from qa.serving.rest import HOST, post
from qa.serving.state import body_of


class Connection(asyncio.Protocol):
    """Sends the same request for ever."""

    def __init__(self, request: bytes, statuses: Counter[str]) -> None:
        self._request, self._statuses = request, statuses
        self._missing = 0  # bytes of the answer whose head has come
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Send the next request when an answer is complete."""
        if not self._missing:
            head, end, rest = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            self._head = b""
            self._statuses[head[9:12].decode()] += 1
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._missing = int(length) - len(rest)
        else:
            self._missing -= len(data)
        if self._missing <= 0:
            self._missing = 0
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """Count it."""
        self._statuses["lost"] += 1

    def _send(self) -> None:
        if isinstance(self._transport, asyncio.WriteTransport) and not self._transport.is_closing():
            self._transport.write(self._request)


async def flood(port: int, key: str, connections: int, rows: int) -> Counter[str]:
    """Flood until standard input ends; returns how many answers of each status came."""
    loop, statuses = asyncio.get_running_loop(), Counter[str]()
    requests = [post(body_of(first, rows), key) for first in range(0, 64, 8)]
    transports = [
        (await loop.create_connection(lambda i=i: Connection(requests[i % 8], statuses), HOST, port))[0]
        for i in range(connections)
    ]
    await loop.run_in_executor(None, sys.stdin.read)
    result = statuses.copy()
    for transport in transports:
        transport.abort()
    return result


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[5])})
    os.nice(19)
    counts = asyncio.run(flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    sys.stdout.write(json.dumps(counts) + "\n")
