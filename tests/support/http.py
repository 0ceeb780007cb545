"""Requests and answers on a bare socket, byte by byte."""

from __future__ import annotations

import asyncio

from tests.support.serving import digits, inference_body

Answer = tuple[int, dict[str, str], bytes]


def body(rows: int = 1) -> bytes:
    """A request for answers to some digits."""
    return inference_body(digits()[:rows])


def head(key: str, length: int | None, *extra: str) -> bytes:
    """The head of an inference request."""
    lines = ["POST /v2/models/digits/infer HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *extra]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def talk(port: int, *parts: bytes, pause: float = 0.0) -> Answer:
    """Send the parts, read one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(pause)
        return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Status, headers and body of the next answer on a connection."""
    first = await asyncio.wait_for(reader.readline(), 60)
    headers = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))
