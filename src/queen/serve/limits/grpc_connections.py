"""Connections over gRPC, counted by address: its library limits them in all, but does not say whose they are.

So the process looks at its own sockets once per second, and shuts those down that are too many: of an address that has
more than it may, and, when nearly all places are taken, of the address that has most. Those that have been silent for
longest go first. The library then sees that the client has hung up. Works where /proc does, which is on Linux.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from queen.serve.limits.connections import Note, address_of, proxy_of
from queen.serve.network import TrustedProxies

EVERY = 1.0  # seconds between two looks
CROWDED_SHARE, ROOMY_SHARE = 7 / 8, 3 / 4  # share of all places beyond which some are made free, and down to which
OPEN_FILES = Path("/proc/self/fd")
TCP_INFO = struct.Struct("=B51xI")  # what the kernel says: state, ..., milliseconds since something came
ESTABLISHED = 1


@dataclass(frozen=True)
class OpenSocket:
    """A connection: its number among the open files, the peer, and for how many milliseconds it has been silent."""

    number: int
    peer: tuple[str, int]
    silence: int


class GrpcConnections:
    """Watches the connections to a port; `note` hears why some are closed, and of which address."""

    def __init__(self, port: int, most: int, most_per_address: int, *, proxies: TrustedProxies, note: Note) -> None:
        self._port, self._most, self._most_per_address = port, most, most_per_address
        self._proxies, self._note = proxies, note

    async def watch(self) -> None:
        """Look once per second, for ever; return at once where that is not possible."""
        while OPEN_FILES.exists():
            await asyncio.sleep(EVERY)
            if len(os.listdir(OPEN_FILES)) > min(self._most_per_address, CROWDED_SHARE * self._most):
                for why, address in await asyncio.to_thread(self.close_some):
                    self._note(why, address)

    def close_some(self) -> list[tuple[str, str]]:
        """Shut down those that are too many; returns why, and the address of each."""
        crowds: dict[str, list[OpenSocket]] = {}
        for one in _connections_to(self._port):
            if proxy_of(one.peer[0], self._proxies) is None:
                crowds.setdefault(address_of(one.peer[0]), []).append(one)
        closed = []
        for address, crowd in crowds.items():
            crowd.sort(key=lambda one: one.silence)
            while len(crowd) > self._most_per_address:
                _shut_down(crowd.pop(), self._port)
                closed.append(("too many of one address", address))
        if sum(map(len, crowds.values())) > CROWDED_SHARE * self._most:
            while sum(map(len, crowds.values())) > ROOMY_SHARE * self._most:
                address, crowd = max(crowds.items(), key=lambda item: len(item[1]))
                _shut_down(crowd.pop(), self._port)
                closed.append(("too many in all", address))
        return closed


def _connections_to(port: int) -> list[OpenSocket]:
    connections = []
    for name in os.listdir(OPEN_FILES):
        with suppress(OSError), _open(int(name), port) as sock:  # which has been closed meanwhile, or is none
            state, silence = TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size))
            if state == ESTABLISHED:
                connections.append(OpenSocket(int(name), sock.getpeername()[:2], silence))
    return connections


def _shut_down(connection: OpenSocket, port: int) -> None:
    with suppress(OSError), _open(connection.number, port) as sock:
        if sock.getpeername()[:2] == connection.peer:  # the number may be another file's by now
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def _open(number: int, port: int) -> Iterator[socket.socket]:
    """A second handle of a connection to this port, so that it can be asked; else `OSError`."""
    copy = os.dup(number)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.getsockname()[1] != port:
            raise OSError(number)
        yield sock
