"""Clients that send a large request up to its last byte, and then wait; and clients that send half a head."""

from __future__ import annotations

import gzip
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from qa.serving.h2 import DATA, PING, SETTINGS, WINDOW, call_fields, frame, opened, packed, start
from qa.serving.rest import HOST, INFER, head

CHUNK, FRAME = 65_536, 16_000
ACK, INITIAL_WINDOW, DEFAULT_WINDOW = 1, b"\x00\x04", 65_535
QUIET = 1.0  # seconds in which nobody could send more: all that the server takes has been sent
HALF_A_HEAD = b"GET /v2/health/live HTTP/1.1\r\nX-Long: "


class Sender(threading.Thread):
    """One connection; `sent` bytes of its body have left so far."""

    def __init__(self, port: int, key: str, size: int) -> None:
        super().__init__(daemon=True)
        self.address = HOST, port
        self.wire = socket.create_connection(self.address)
        self.key, self.size, self.sent, self.reply = key, size, 0, b""

    def run(self) -> None:
        """Send until the last byte, or until the server has heard enough."""
        try:
            self.send_all()
            self.reply = self.reply or self.wire.recv(12)
        except OSError:
            return

    def send_all(self) -> None:
        """Send everything but the last byte; stop at an answer."""
        self.wire.sendall(head("POST", INFER, *self.headers(), length=self.length()))
        body = self.body()
        while self.sent < len(body) - 1 and not select.select([self.wire], [], [], 0)[0]:
            part = body[self.sent : min(self.sent + CHUNK, len(body) - 1)]
            self.wire.sendall(self.wrap(part))
            self.sent += len(part)

    def headers(self) -> Sequence[str]:
        """Fields of the head."""
        return [f"Authorization: Bearer {self.key}"]

    def length(self) -> int | None:
        """What the head says of the body."""
        return self.size

    def body(self) -> bytes:
        """The whole body."""
        return bytes(self.size)

    def wrap(self, part: bytes) -> bytes:
        """A part of it as it travels."""
        return part


class HeadSender(Sender):
    """A head, and nothing of the body that it announces; where it is refused, one of half as much."""

    def send_all(self) -> None:
        """Send heads until one is taken."""
        while self.size:
            self.wire.sendall(head("POST", INFER, *self.headers(), length=self.size))
            self.sent += 1
            if not select.select([self.wire], [], [], 2 * QUIET)[0]:
                return
            self.size //= 2
            self.wire.close()
            self.wire = socket.create_connection(self.address)


class ChunkedSender(Sender):
    """The same in chunks, so that the server does not know how many will come."""

    def headers(self) -> Sequence[str]:
        """Fields of the head."""
        return [*super().headers(), "Transfer-Encoding: chunked"]

    def length(self) -> None:
        """Nothing is said of it."""

    def wrap(self, part: bytes) -> bytes:
        """A chunk."""
        return b"%x\r\n%b\r\n" % (len(part), part)


class GzipSender(Sender):
    """The same as gzip that packs nothing."""

    def headers(self) -> Sequence[str]:
        """Fields of the head."""
        return [*super().headers(), "Content-Encoding: gzip"]

    def body(self) -> bytes:
        """A whole stream of the size."""
        return gzip.compress(bytes(self.size - 2000), 0).ljust(self.size, b"\0")


class BombSender(Sender):
    """A whole request, small, that becomes as large as allowed: all of it is sent."""

    def send_all(self) -> None:
        """Send everything."""
        bomb = gzip.compress(b" " * self.size, 9)
        self.wire.sendall(head("POST", INFER, *super().headers(), "Content-Encoding: gzip", length=len(bomb)) + bomb)
        self.sent = self.size


class GrpcSender(Sender):
    """A gRPC client that sends no more than the server's windows allow."""

    def send_all(self) -> None:
        """Send everything but the last byte of one message."""
        self.wire.sendall(start() + opened(call_fields(self.key)))
        self._windows, self._initial, self._got = {0: DEFAULT_WINDOW, 1: DEFAULT_WINDOW}, DEFAULT_WINDOW, b""
        text = memoryview(packed(bytes(self.size)))
        while self.sent < self.size - 1:
            room = min(*self._windows.values(), FRAME, self.size - 1 - self.sent)
            if room <= 0 or select.select([self.wire], [], [], 0)[0]:
                if not self._listen():
                    return
                continue
            self.wire.sendall(frame(DATA, 0, 1, bytes(text[self.sent : self.sent + room])))
            self.sent += room
            self._windows = {stream: window - room for stream, window in self._windows.items()}

    def _listen(self) -> bool:
        """Read frames; False once the connection is closed."""
        more = self.wire.recv(65_536)
        self._got += more
        while len(self._got) >= 9 and len(self._got) >= 9 + (size := int.from_bytes(self._got[:3], "big")):
            self._take(*self._got[3:5], int.from_bytes(self._got[5:9], "big"), self._got[9 : 9 + size])
            self._got = self._got[9 + size :]
        return bool(more)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW and stream in self._windows:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            pairs = {
                payload[i : i + 2]: int.from_bytes(payload[i + 2 : i + 6], "big") for i in range(0, len(payload), 6)
            }
            initial = pairs.get(INITIAL_WINDOW, self._initial)
            self._windows[1] += initial - self._initial
            self._initial = initial
            self.wire.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.wire.sendall(frame(PING, ACK, 0, payload))


HEADS: Mapping[str, type[Sender]] = {"heads alone": HeadSender}
FORMS: Mapping[str, type[Sender]] = {
    "REST": Sender,
    "REST in chunks": ChunkedSender,
    "REST as gzip": GzipSender,
    "REST, packed and whole": BombSender,
    "gRPC": GrpcSender,
}


@contextmanager
def withholding(form: str, port: int, keys: Sequence[str], count: int, size: int) -> Iterator[list[Sender]]:
    """So many connections with a request each, the keys in turns, as far as the server takes them."""
    senders = [{**FORMS, **HEADS}[form](port, keys[i % len(keys)], size) for i in range(count)]
    for sender in senders:
        sender.start()
    before, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        time.sleep(0.1)
        total = sum(sender.sent + len(sender.reply) for sender in senders)
        if total != before:
            before, since = total, time.monotonic()
    try:
        yield senders
    finally:
        for sender in senders:
            with suppress(OSError):
                sender.wire.shutdown(socket.SHUT_RDWR)  # which also wakes a thread that listens
        for sender in senders:
            sender.join()
            sender.wire.close()


@contextmanager
def half_sent(port: int, count: int, text: bytes = HALF_A_HEAD) -> Iterator[list[socket.socket]]:
    """So many connections with half a head each, or another text after which nothing comes."""
    with ExitStack() as stack:
        wires = []
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 200)), hard))
        for _ in range(count):
            wires.append(stack.enter_context(socket.create_connection((HOST, port), timeout=60)))
            try:
                wires[-1].sendall(text)
            except ConnectionError:  # refused already
                continue
        yield wires
