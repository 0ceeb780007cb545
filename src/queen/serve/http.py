"""Limits around uvicorn's HTTP handling.

A request must arrive whole within a time, the sizes of its head and its body and the number of connections are limited,
and clients that do not read their answers are disconnected. Besides, an answer leaves in one packet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from queen.serve.limits.connections import Connections, Crowd, address_of
from queen.serve.limits.files import SPARE, file_limit
from queen.serve.limits.refusal_log import RefusalLog
from queen.serve.network import TrustedProxies
from queen.serve.protocol.rest_write import error_body
from queen.serve.settings import Settings

STATUS = {
    400: b"400 Bad Request",
    408: b"408 Request Timeout",
    431: b"431 Request Header Fields Too Large",
    503: b"503 Service Unavailable\r\nretry-after: 1",
}
CONTENT_LENGTH = b"content-length"
LENGTHS = (CONTENT_LENGTH, b"transfer-encoding")  # headers that say how long a body is
ONE_PACKET = "queen.one_packet"  # name of the ASGI extension `send_in_one_packet`
MAX_PIPELINE = 64  # requests that may wait on one connection for the answers to those before them
MAX_PIPELINE_BYTES = 1 << 16  # of their bodies


class LimitedProtocol(HttpToolsProtocol):
    """One connection. While no request is being answered, a timer runs that will close it.

    The class attributes are what all connections of a server have in common; `make_limited_protocol` sets them.
    """

    settings: Settings
    places: Connections
    note_refusal: Callable[[str, str], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._crowd: Crowd | None = None  # the connections of its address, while it has a place among them
        self._deadline: float | None = None  # when the next request must have arrived, if one is expected
        self._request_timer: asyncio.TimerHandle | None = None  # looks at the deadline, now and then
        self._reader_timer: asyncio.TimerHandle | None = None  # until the client must have read its answer
        self._overhead = 0  # bytes that came since the last head or piece of a body, and belong to no body
        self._longest_head = 0  # no head that ends in what came last can have more bytes
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give it a place, or refuse it."""
        super().connection_made(transport)
        host = self.client[0] if self.client else None
        if is_last_file(transport):
            self.note_refusal("no files left", address_of(host))
            self._close(503, "too many connections; try again")
            return
        self._crowd = self.places.enter(self, host)
        if self._crowd is None:
            self._close(503, "too many connections; try again")
            return
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give its place back."""
        self._leave()
        self._deadline = None
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._cancel_reader_timer()
        super().connection_lost(exc)

    def evict(self) -> None:
        """Close a connection that waits for its client, because another one needs the place."""
        self._leave()
        self._close(503, "closed for other connections, as no whole request came; try again")

    def data_received(self, data: bytes) -> None:
        """Parse what came, and count what belongs to no body."""
        if self.transport.is_closing():
            return
        self._overhead += len(data)
        self._longest_head = self._overhead
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._overhead > self.settings.max_header:  # also by chunk extensions, and by what follows the last chunk
            self._close(431, f"the head of a request may have {self.settings.max_header} bytes")
        elif self._deadline is None and self.timeout_keep_alive_task is None and self._is_idle():
            self._expect_request()  # it sent the rest of a refused body, or nothing but line ends

    def on_message_begin(self) -> None:
        """The next request has begun, and has a deadline."""
        super().on_message_begin()
        self._in_head = True
        self._expect_request()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head."""
        if self._in_head:  # fields after a chunked body would only fill the memory
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer the request, unless its head must be refused."""
        if self.transport.is_closing():
            return
        if (refusal := self._check_head()) is not None:
            self._close(*refusal)
            return
        self._in_head, self._overhead = False, 0
        super().on_headers_complete()
        self.scope["extensions"] = {ONE_PACKET: partial(send_in_one_packet, self.cycle)}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        """The request is whole: its client waits for the server now."""
        self._deadline = None
        self._in_head, self._overhead = True, 0
        if self.cycle is not None:
            super().on_message_complete()
            if self._crowd is not None and not self.cycle.response_complete:
                self._crowd.waiting.pop(self, None)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, but not many for requests whose turn has not come."""
        self._overhead = 0
        if self.transport.is_closing():
            return
        super().on_body(body)
        if self.pipeline and sum(len(cycle.body) for cycle, _ in self.pipeline) > MAX_PIPELINE_BYTES:
            self._close(400, f"at most {MAX_PIPELINE_BYTES} bytes may be sent before an answer to those before them")

    def on_response_complete(self) -> None:
        """The server waits for its client again."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reader()
        elif self._crowd is not None and self._is_idle():
            self._crowd.waiting[self] = None

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_reader_timer()

    def timeout_keep_alive_handler(self) -> None:
        """It has asked nothing for long."""
        super().timeout_keep_alive_handler()
        self._expect_reader()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed."""
        self._close(400, "this is not HTTP/1.1")

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing, so that clients cannot fill the log; the request is answered without the upgrade."""

    def _check_head(self) -> tuple[int, str] | None:
        """Status and message if the head that has just arrived must be refused."""
        limit = self.settings.max_header
        if self._longest_head > limit and self._head_size() > limit:
            return 431, f"the head of a request may have {limit} bytes"
        lengths = [name for name, _ in self.headers if name in LENGTHS]
        if lengths.count(CONTENT_LENGTH) and len(lengths) > 1:
            return 400, "a request must say the length of its body once"
        if len(self.pipeline) >= MAX_PIPELINE:
            return 400, f"at most {MAX_PIPELINE} requests may wait on one connection"
        return None

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _leave(self) -> None:
        if self._crowd is not None:
            self.places.leave(self, self._crowd)
            self._crowd = None

    def _expect_request(self) -> None:
        """Set the deadline. The timer is not set anew for every request: when it runs out, it looks for the next."""
        self._deadline = self.loop.time() + self.settings.request_timeout
        if self._request_timer is None:
            self._request_timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._request_timer = None
        if self._deadline is None:
            return
        if self.loop.time() < self._deadline:
            self._request_timer = self.loop.call_at(self._deadline, self._check_deadline)
        elif not self.transport.is_closing():
            self._close(408, f"a request must arrive within {self.settings.request_timeout:g} seconds")

    def _expect_reader(self) -> None:
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self.settings.request_timeout, self.transport.abort)

    def _cancel_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _close(self, status: int, message: str) -> None:
        """Write an error without uvicorn, unless an answer has begun, and hang up."""
        self._deadline = None
        cycle = self.cycle
        if cycle is None or not cycle.response_started or (self._in_head and cycle.response_complete):
            body = error_body(message)
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (STATUS[status], len(body)) + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()
        self._expect_reader()


def make_limited_protocol(settings: Settings) -> type[LimitedProtocol]:
    """uvicorn's HTTP protocol with the limits of these settings, and places for as many connections."""
    refusals = RefusalLog("connections refused")
    places = Connections(
        settings.max_connections,
        settings.address_connections,
        proxies=TrustedProxies(settings.trusted_proxy),
        note=refusals.note,
    )
    common = {"settings": settings, "places": places, "note_refusal": staticmethod(refusals.note)}
    return type("LimitedProtocol", (LimitedProtocol,), common)


def is_last_file(transport: asyncio.BaseTransport) -> bool:
    """Whether this connection is one of the last files that the process may open; new ones get the lowest number."""
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.fileno() >= file_limit() - SPARE // 2


async def send_in_one_packet(
    cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Answer a request with one packet; uvicorn itself sends head and body in two."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected or cycle.transport.is_closing():  # by a request behind this one that was refused
        cycle.disconnected = True
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
    cycle.scope.pop("extensions", None)  # it refers to the cycle: both would wait for the garbage collector
    if cycle.flow.write_paused:  # what the client has not read yet takes memory: the request is not over
        await cycle.flow.drain()
