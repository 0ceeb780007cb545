"""Asks a server as fast as it answers, over connections that stay open, and counts and times the answers.

    python benchmarks/serve/load.py http://127.0.0.1:8000/v2/models/digits/infer \
        --bodies bodies.jsonl --keys keys.txt --connections 32 --seconds 5 --json

Every connection has its own key, so it is a client of its own, and sends its next request when the last one is
answered. Bodies are lines of a file, or (--body-size) equal parts of one. Needs nothing but Python and uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 30.0  # seconds for answers that are late
LOST = "lost"  # what is counted in place of a status when the server hangs up


@dataclass
class Tally:
    """What happened while it counted: seconds that each answer took, and how many had which status."""

    begin: float
    end: float
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    sent: int = 0  # all requests, those of the warm-up too

    def count(self, status: str, start: float, now: float) -> None:
        """One answer; only those that came while it counted."""
        if self.begin <= now < self.end:
            self.statuses[status] += 1
            if status != LOST:
                self.seconds.append(now - start)

    def summary(self) -> dict[str, Any]:
        """Figures of the run; latencies are those of all answers, whatever their status."""
        window = self.end - self.begin
        answers = sum(self.statuses.values()) - self.statuses[LOST]
        return {
            "requests": answers,
            "seconds": window,
            "requests_per_second": answers / window,
            "latency_ms": percentiles(self.seconds),
            "statuses": dict(sorted(self.statuses.items())),
            "errors": sum(self.statuses.values()) - self.statuses["200"],
            "sent": self.sent,
        }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles in milliseconds."""
    if not seconds:
        return {}
    ordered = sorted(seconds)

    def at(percent: int) -> float:
        return 1000 * ordered[-(-percent * len(ordered) // 100) - 1]

    return {"p50": at(50), "p95": at(95), "p99": at(99), "max": at(100)}


class Connection(asyncio.Protocol):
    """One client: sends a head with one tail after the other, from the first to the last and over again."""

    def __init__(self, head: bytes, tails: Sequence[bytes], first: int, tally: Tally) -> None:
        self._head, self._tails, self._next, self._tally = head, tails, first, tally
        self._transport: Any = None
        self._buffer, self._missing = b"", -1  # bytes of the answer still to come; -1: its head is not whole yet
        self._status, self._start = "", 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """A piece of an answer, most often all of it."""
        if self._missing < 0:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            head = self._buffer[:end].lower()
            self._status = head[9:12].decode()
            _, _, rest = head.partition(b"content-length:")
            self._missing = int(rest[: rest.index(b"\r")]) - len(self._buffer) + end
            self._buffer = b""
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, expected or not."""
        if not self.done.done():
            self._tally.count(LOST, self._start, time.perf_counter())
            self.done.set_result(None)

    def _ask(self) -> None:
        self._missing = -1
        request = self._head + self._tails[self._next % len(self._tails)]
        self._next += 1
        self._tally.sent += 1
        self._start = time.perf_counter()
        self._transport.write(request)

    def _answered(self) -> None:
        now = time.perf_counter()
        self._tally.count(self._status, self._start, now)
        if now < self._tally.end:
            self._ask()
        else:
            self.done.set_result(None)
            self._transport.close()


def head_of(url: str, key: str | None, headers: Sequence[str] = ()) -> bytes:
    """What all requests of a client begin with."""
    parts = urlsplit(url)
    lines = [f"POST {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}", *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "".join(f"{line}\r\n" for line in lines).encode()


async def ask(
    url: str,
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str] = (),
    headers: Sequence[str] = (),
    connections: int = 32,
    seconds: float = 5.0,
    warm_up: float = 1.0,
    first: int = 0,
) -> dict[str, Any]:
    """Figures of one run; clients start at different bodies, the first at number `first`."""
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    heads = [head_of(url, keys[i % len(keys)] if keys else None, headers) for i in range(connections)]
    tails = [b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies]
    begin = time.perf_counter() + warm_up
    tally = Tally(begin, begin + seconds)
    opened = [
        await loop.create_connection(
            lambda i=i: Connection(heads[i], tails, first + i * len(bodies) // connections, tally),  # type: ignore[misc]
            parts.hostname,
            parts.port,
        )
        for i in range(connections)
    ]
    await asyncio.wait([protocol.done for _, protocol in opened], timeout=warm_up + seconds + PATIENCE)
    return tally.summary()


def read_bodies(path: Path, size: int | None) -> list[bytes]:
    """Bodies from a file: its lines, or equal parts of this size."""
    data = path.read_bytes()
    if size is None:
        return data.splitlines()
    return [data[i : i + size] for i in range(0, len(data), size)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="file of bodies, one a line")
    parser.add_argument("--body-size", type=int, help="bytes of every body, if the file holds no lines")
    parser.add_argument("--keys", type=Path, help="file of API keys, one a line")
    parser.add_argument("--header", action="append", default=[], help="one more header line of every request")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before counting begins")
    parser.add_argument("--first", type=int, default=0, help="number of the body to begin with")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Run from the command line."""
    options = parse()
    run = ask(
        options.url,
        read_bodies(options.bodies, options.body_size),
        keys=options.keys.read_text().split() if options.keys else (),
        headers=options.header,
        connections=options.connections,
        seconds=options.seconds,
        warm_up=options.warm_up,
        first=options.first,
    )
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        report = asyncio.run(run)
    else:
        report = uvloop.run(run)
    if options.json:
        json.dump(report, sys.stdout)
    else:
        latency = ", ".join(f"{name} {ms:.2f} ms" for name, ms in report["latency_ms"].items())
        print(f"{report['requests_per_second']:,.0f} requests/s, {latency}, statuses {report['statuses']}")


if __name__ == "__main__":
    main()
