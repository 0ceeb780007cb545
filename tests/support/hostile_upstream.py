"""An upstream made of bare sockets: it answers with whatever bytes a test gives it, or breaks off in the middle."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

METADATA = {
    "name": "m",
    "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
    "outputs": [{"name": "features", "datatype": "FP32", "shape": [-1, 2]}, {"name": "logits", "datatype": "FP32"}],
}
Answer = Callable[[dict[str, Any]], bytes]
"""The bytes for a question, given as its JSON; the connection ends after them if they are not whole."""


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def output(name: str, rows: list[list[float]], **changes: Any) -> dict[str, Any]:
    flat = [number for row in rows for number in row]
    return {"name": name, "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": flat} | changes


class HostileUpstream:
    """Answers questions one after the other on every connection; `pause` seconds after every byte if that is set."""

    def __init__(self, answer: Answer, port: int) -> None:
        self.answer, self.port, self.pause = answer, port, 0.0
        self.connections = self.questions = 0
        self.extensions: list[str] = []
        self.closing = 0  # answers after which connections are closed without a word

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                self.connections += 1
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file, contextlib.suppress(OSError, ValueError):
            while line := file.readline():
                path, headers = line.split()[1].decode(), {}
                while (header := file.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    headers[name.lower()] = value.strip()
                body = file.read(int(headers.get(b"content-length", 0)))
                if not path.endswith("/infer"):
                    content = {"extensions": self.extensions} if path == "/v2" else METADATA
                    connection.sendall(http(json.dumps(content).encode()))
                    continue
                self.questions += 1
                size = int(headers.get(b"inference-header-content-length", len(body)))
                self._send(connection, self.answer(json.loads(body[:size])))
                if self.closing:
                    self.closing -= 1
                    return

    def _send(self, connection: socket.socket, data: bytes) -> None:
        if not self.pause:
            connection.sendall(data)
            head, _, body = data.partition(b"\r\n\r\n")
            if b"Content-Length: %d\r\n" % len(body) not in head + b"\r\n" or not head:
                connection.shutdown(socket.SHUT_RDWR)
                raise OSError
            return
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(self.pause)


@contextmanager
def hostile_upstream(answer: Answer) -> Iterator[HostileUpstream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = HostileUpstream(answer, listener.getsockname()[1])
        threading.Thread(target=upstream.serve, args=(listener,), daemon=True).start()
        yield upstream
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
