"""Slow clients in a process of their own: `python -m qa.serving.crowd REST GRPC KEY COUNT SECONDS`.

Prints, for every kind, how many seconds the server kept each connection; null for one that it did not close. Clients
who do not read what they are sent see nothing of their end: they stay, for the server's open files to be counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable

from qa.serving.h2 import start
from qa.serving.rest import HOST, INFER, get, head

PAUSE = 0.5  # seconds between two bytes
Talk = Callable[[str], AsyncIterator[bytes]]


async def silent(key: str) -> AsyncIterator[bytes]:
    """Connects, and says nothing."""
    for _ in ():
        yield b""


async def in_the_head(key: str) -> AsyncIterator[bytes]:
    """Sends its head byte by byte."""
    for byte in head("POST", INFER, f"Authorization: Bearer {key}", length=1000):
        yield bytes([byte])
        await asyncio.sleep(PAUSE)


async def in_the_body(key: str) -> AsyncIterator[bytes]:
    """Sends its head at once and its body byte by byte."""
    yield head("POST", INFER, f"Authorization: Bearer {key}", length=100_000)
    while True:
        yield b" "
        await asyncio.sleep(PAUSE)


async def in_chunks(key: str) -> AsyncIterator[bytes]:
    """The same in chunks."""
    yield head("POST", INFER, f"Authorization: Bearer {key}", "Transfer-Encoding: chunked")
    while True:
        yield b"1\r\n \r\n"
        await asyncio.sleep(PAUSE)


async def after_a_refusal(key: str) -> AsyncIterator[bytes]:
    """Is refused before it has sent its body, sends it nevertheless, and then nothing."""
    yield head("POST", INFER, "Authorization: Bearer bad", length=1000)
    await asyncio.sleep(PAUSE)
    yield bytes(1000)


async def line_ends(key: str) -> AsyncIterator[bytes]:
    """Asks for a page, and then sends line ends, which mean nothing."""
    yield get("/v2/health/live")
    while True:
        await asyncio.sleep(PAUSE)
        yield b"\r\n"


async def between_requests(key: str) -> AsyncIterator[bytes]:
    """Asks for a page, and then for nothing."""
    yield get("/v2/health/live")


async def grpc_greeting(key: str) -> AsyncIterator[bytes]:
    """Begins a gRPC connection and never says that it has read the server's settings."""
    yield start()


TRICKLING: tuple[Talk, ...] = (in_the_head, in_the_body, in_chunks, line_ends)
SILENT: tuple[Talk, ...] = (silent, after_a_refusal, between_requests)
OVER_GRPC: tuple[Talk, ...] = (silent, grpc_greeting)


async def keep(port: int, key: str, talk: Talk, seconds: float) -> float | None:
    """How long the server keeps such a client, None if longer than these seconds."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection(HOST, port)
    sender = asyncio.create_task(_send(writer, talk(key)))
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
        return time.monotonic() - begin
    except TimeoutError:
        return None
    finally:
        sender.cancel()
        writer.close()


def deaf(port: int) -> socket.socket:
    """A client that asks for much and reads nothing."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.connect((HOST, port))
    wire.setblocking(False)
    return wire


async def ask_much(wires: list[socket.socket], seconds: float) -> None:
    """Let deaf clients ask for page after page, as much as their connections take."""
    end, pages = time.monotonic() + seconds, get("/dashboard/uplot.js") * 40
    while time.monotonic() < end:
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.send(pages)
        await asyncio.sleep(PAUSE)


async def _send(writer: asyncio.StreamWriter, parts: AsyncIterator[bytes]) -> None:
    await asyncio.sleep(PAUSE * random.random())  # slow clients do not send in step
    with contextlib.suppress(ConnectionError):
        async for part in parts:
            writer.write(part)
            await writer.drain()


async def crowd(rest: int, grpc: int, key: str, count: int, seconds: float) -> dict[str, list[float | None]]:
    """`count` trickling and `count` silent clients over REST, and a tenth of that over gRPC."""
    talks = [(rest, TRICKLING[i % len(TRICKLING)]) for i in range(count)]
    talks += [(rest, SILENT[i % len(SILENT)]) for i in range(count)]
    talks += [(grpc, OVER_GRPC[i % len(OVER_GRPC)]) for i in range(max(2, count // 10))]
    durations = await asyncio.gather(*(keep(port, key, talk, seconds) for port, talk in talks))
    by_kind: dict[str, list[float | None]] = {}
    for (port, talk), duration in zip(talks, durations, strict=True):
        by_kind.setdefault(f"{'gRPC ' if port == grpc else ''}{talk.__name__}", []).append(duration)
    return by_kind


async def main(rest: int, grpc: int, key: str, count: int, seconds: float) -> None:
    """The crowd, and deaf clients, a tenth as many, who ask while it is there and stay until a line is written."""
    wires = [deaf(rest) for _ in range(max(2, count // 10))]
    asking = asyncio.create_task(ask_much(wires, seconds / 2))
    sys.stdout.write(f"{json.dumps(await crowd(rest, grpc, key, count, seconds))}\n")
    sys.stdout.flush()
    asking.cancel()
    sys.stdin.readline()


if __name__ == "__main__":
    ports, (text, number, limit) = map(int, sys.argv[1:3]), sys.argv[3:]
    asyncio.run(main(*ports, text, int(number), float(limit)))
