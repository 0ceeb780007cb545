"""What uvicorn leaves open: a request must arrive whole within a time, its head has a size, connections a number, and
an answer leaves in one piece."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from queen.serve.protocol.rest_write import error_body
from queen.serve.settings import Settings
from queen.serve.types import ServeError

STATUS = {
    400: b"400 Bad Request",
    408: b"408 Request Timeout",
    431: b"431 Request Header Fields Too Large",
    503: b"503 Service Unavailable\r\nretry-after: 1",
}
CONTENT_LENGTH, TRANSFER_ENCODING = b"content-length", b"transfer-encoding"
WHOLE = "queen.whole"  # the ASGI extension `send_whole`
MAX_PIPELINE = 64  # requests that may wait on one connection for the answers to those before them


def strict_protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """uvicorn's HTTP protocol with the limits of these settings."""

    class Strict(HttpToolsProtocol):
        """One connection. As long as no request is being answered, some timer is running that will close it."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._deadline: asyncio.TimerHandle | None = None  # of the request that is on its way
            self._last_call: asyncio.TimerHandle | None = None  # of a client that does not read what it is sent
            self._between = 0  # bytes since the last head or piece of a body ended: of a head, or of no use
            self._in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                self._close(503, "too many connections; try again")
                return
            self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._no_deadline()
            self._no_last_call()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._between += len(data)
            super().data_received(data)
            if self.transport.is_closing():
                return
            if self._between > settings.max_header:  # also of chunks' extensions, and of what follows the last chunk
                self._close(431, f"the head of a request may have {settings.max_header} bytes")
            elif self._is_idle() and self._deadline is None and self.timeout_keep_alive_task is None:
                self._expect_request()  # it sent the rest of a body that was refused before, or nothing but line ends

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head = True
            self._expect_request()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:  # what comes after a body in chunks would only fill the memory
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            if self.transport.is_closing():
                return
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > settings.max_header:
                self._close(431, f"the head of a request may have {settings.max_header} bytes")
                return
            names = [name for name, _ in self.headers]
            if names.count(CONTENT_LENGTH) > 1 or (CONTENT_LENGTH in names and TRANSFER_ENCODING in names):
                self._close(400, "a request must say the length of its body once")
                return
            if len(self.pipeline) >= MAX_PIPELINE:
                self._close(400, f"at most {MAX_PIPELINE} requests may wait on one connection")
                return
            self._in_head, self._between = False, 0
            super().on_headers_complete()
            self.scope["extensions"] = {WHOLE: partial(send_whole, self.cycle)}  # type: ignore[dict-item]

        def on_message_complete(self) -> None:
            self._no_deadline()
            self._in_head, self._between = True, 0
            if self.cycle is not None:
                super().on_message_complete()

        def on_body(self, body: bytes) -> None:
            self._between = 0
            if not self.transport.is_closing():
                super().on_body(body)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._expect_reader()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():
                self._no_last_call()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._expect_reader()

        def send_400_response(self, msg: str) -> None:
            self._close(400, "this is not HTTP/1.1")

        def _unsupported_upgrade_warning(self) -> None:
            """Say nothing: the request is answered as if it had not asked, and its sender must not fill the log."""

        def _is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _expect_request(self) -> None:
            self._no_deadline()
            self._deadline = self.loop.call_later(settings.request_timeout, self._too_slow)

        def _no_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _expect_reader(self) -> None:
            if self._last_call is None:
                self._last_call = self.loop.call_later(settings.request_timeout, self.transport.abort)

        def _no_last_call(self) -> None:
            if self._last_call is not None:
                self._last_call.cancel()
                self._last_call = None

        def _too_slow(self) -> None:
            if not self.transport.is_closing():
                self._close(408, f"a request must arrive within {settings.request_timeout:g} seconds")

        def _close(self, status: int, message: str) -> None:
            """Answer by hand, unless an answer has begun, and hang up."""
            self._no_deadline()
            cycle = self.cycle
            if cycle is None or not cycle.response_started or (self._in_head and cycle.response_complete):
                body = error_body(message)
                head = (
                    b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head % (STATUS[status], len(body)) + body)
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
            self.transport.close()
            self._expect_reader()

    return Strict


async def send_whole(cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Answer a request with one packet; uvicorn sends head and body apart, which costs both sides a packet more."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    lines = [STATUS_LINE[status]]
    for name, value in cycle.default_headers + headers:
        lines += (name, b": ", value, b"\r\n")
    if not cycle.keep_alive:
        lines.append(b"connection: close\r\n")
    cycle.transport.write(b"".join((*lines, b"\r\n", body)))
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    cycle.scope.pop("extensions", None)  # which holds the cycle: both would wait for the garbage collector


async def read_body(headers: dict[bytes, bytes], receive: Any, limit: int) -> bytes | bytearray:
    """A request's body, refused as soon as it is known to be too large."""
    try:
        declared = int(headers.get(CONTENT_LENGTH, b"0"))
    except ValueError as error:
        raise ServeError(400, "content-length must be a number") from error
    if declared > limit:
        raise ServeError(413, f"a request body may have {limit} bytes, got {declared}")
    body = bytearray()  # grows in place, where a list of parts would be there twice when it is joined
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part: bytes = message.get("body", b"")
        if len(body) + len(part) > limit:
            raise ServeError(413, f"a request body may have {limit} bytes, got more")
        if not message.get("more_body", False) and not body:
            return part
        body += part
        if not message.get("more_body", False):
            return body
