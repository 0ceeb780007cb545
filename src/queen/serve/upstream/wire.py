"""HTTP connections that keep to a deadline as a whole, however slowly the other side sends or takes."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from typing import Any

PIECE = 1 << 16


class DeadlineSocket:
    """What `http.client` needs of a socket, with one deadline for everything."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline = 0.0  # by time.monotonic()

    def _arm(self) -> socket.socket:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time left")
        self._sock.settimeout(left)
        return self._sock

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._arm().send(rest) :]

    def receive_into(self, buffer: Any) -> int:
        """Read what there is; 0 at the end."""
        return self._arm().recv_into(buffer)

    def makefile(self, mode: str = "rb") -> io.BufferedReader:
        """A file to read the answer from."""
        return io.BufferedReader(_DeadlineFile(self), PIECE)

    def is_closed_by_peer(self) -> bool:
        """Whether an idle connection has ended, or holds bytes that nobody asked for."""
        self._sock.settimeout(0)
        try:
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


class _DeadlineFile(io.RawIOBase):
    """The bytes that arrive at a `DeadlineSocket`."""

    def __init__(self, sock: DeadlineSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is."""
        return self._sock.receive_into(buffer)


class WireConnection:
    """One connection over HTTP/1.1, kept open between requests if the other side wishes so."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, deadline: float) -> None:
        left = max(0.001, deadline - time.monotonic())
        self._http = (
            http.client.HTTPConnection(host, port, timeout=left)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=left, context=tls)
        )
        self._http.connect()
        self._http.auto_open = 0
        self._sock = DeadlineSocket(self._http.sock)
        self._http.sock = self._sock  # all that it uses is there

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        return self._http.sock is not None and not self._sock.is_closed_by_peer()

    def ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], *, deadline: float, most: int
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body of the answer, which has at most `most` bytes; else `OverflowError`."""
        self._sock.deadline = deadline
        self._http.request(method, path, body, headers)
        response = self._http.getresponse()
        if response.length is not None and response.length > most:
            raise OverflowError(response.length)
        pieces, size = list[bytes](), 0
        while piece := response.read(PIECE):
            size += len(piece)
            if size > most:
                raise OverflowError(size)
            pieces.append(piece)
        if response.length:  # http.client says nothing of a body that ends too early
            raise http.client.IncompleteRead(b"", response.length)
        if response.will_close:
            self.close()
        return response.status, response.headers, b"".join(pieces)

    def close(self) -> None:
        """Close it; it cannot be used again."""
        self._http.close()
        self._sock.close()
