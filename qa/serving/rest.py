"""A client that can send anything: bytes on a socket, and what comes back."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds without an answer that are a hang
HANG, SILENCE = -1, 0  # instead of a status: nothing happened, or the connection was closed without a word
INFER = "/v2/models/digits/infer"


@dataclass(frozen=True)
class Told:
    """What a server said: HANG or SILENCE where it said nothing."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


def head(method: str, path: str, *headers: str, length: int | None = None) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: queen", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(body: bytes, key: str, *headers: str, path: str = INFER) -> bytes:
    """A whole request for an answer."""
    return head("POST", path, f"Authorization: Bearer {key}", *headers, length=len(body)) + body


def get(path: str, key: str = "") -> bytes:
    """A whole request for a page."""
    return head("GET", path, *([f"Authorization: Bearer {key}"] if key else []))


def chunked(parts: Sequence[bytes]) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def ask(port: int, *parts: bytes, pause: float = 0.0, patience: float = PATIENCE, source: str = HOST) -> Told:
    """Send the parts on a new connection from an address, whatever they are, and read one answer."""
    with socket.create_connection((HOST, port), timeout=patience, source_address=(source, 0)) as wire:
        return talk(wire, *parts, pause=pause)


def talk(wire: socket.socket, *parts: bytes, pause: float = 0.0) -> Told:
    """The same on an open connection."""
    start = time.monotonic()
    try:
        for part in parts:
            wire.sendall(part)
            if pause:
                time.sleep(pause)
    except TimeoutError:
        return Told(HANG, seconds=time.monotonic() - start)
    except OSError:  # it has heard enough, and may have said why
        pass
    try:
        status, headers, body = read(wire)
    except TimeoutError:
        return Told(HANG, seconds=time.monotonic() - start)
    return Told(status, headers, body, time.monotonic() - start)


def read(wire: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer; SILENCE where the connection ends before it has begun."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = _receive(wire)
        if not more:
            return SILENCE, {}, got
        got += more
    first, _, rest = got.partition(b"\r\n")
    lines, _, body = rest.partition(b"\r\n\r\n")
    pairs = (line.partition(":") for line in lines.decode("latin-1").split("\r\n"))
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    while len(body) < int(headers.get("content-length", "0")) and (more := _receive(wire)):
        body += more
    return int(first.split()[1]), headers, body


def _receive(wire: socket.socket) -> bytes:
    try:
        return wire.recv(1 << 16)
    except ConnectionError:
        return b""
