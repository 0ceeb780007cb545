"""Alarms posted to another service as signed JSON, by a thread of its own, so that no answer ever waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import sys
import threading
import time
import urllib.request
from collections import deque
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from queen.errors import OptionError
from queen.ledger import Event
from queen.serve.telemetry.log import log

if TYPE_CHECKING:
    from queen.serve.telemetry.metrics import Metrics, Outcome

DRAIN = 2.0  # seconds at shutdown to send what still waits
MAX_PAUSE = 30.0  # seconds between two attempts
RETRIED = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses after which another attempt may succeed


@dataclass(frozen=True)
class Notification:
    """One event as it is sent: its idempotency key and the JSON body."""

    key: str
    body: bytes


class Webhook:
    """Posts events to one URL in order of arrival, each up to 1 + `retries` times with growing pauses.

    At most `size` events wait; then the oldest is dropped. `secret` signs every body: X-Queen-Signature holds "sha256="
    and the HMAC-SHA256 in hexadecimal. Redirects are not followed.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        timeout: float = 5.0,
        retries: int = 5,
        size: int = 256,
        pause: float = 0.5,
        server: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.host = _check_url(url)
        if timeout <= 0 or retries < 0 or size < 1 or pause < 0:
            raise OptionError("a webhook needs a timeout above 0, retries and pause of 0 or more, room for an event")
        self._url, self._secret, self._timeout, self._retries = url, secret, timeout, retries
        self._size, self._pause, self._metrics = size, pause, metrics
        self._server = socket.gethostname() if server is None else server
        self._waiting: deque[Notification] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._deadline = 0.0  # of the last attempts, once it is closing
        self._thread = threading.Thread(target=self._run, name="queen-webhook", daemon=True)
        # Without urllib's handlers of redirects and errors: a response is a response, whatever its status.
        self._opener = urllib.request.OpenerDirector()
        for handler in (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
            self._opener.add_handler(handler())

    async def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    async def stop(self) -> None:
        """Send what still waits, for two seconds at most, and then nothing any more."""
        with self._changed:
            self._closing, self._deadline = True, time.monotonic() + DRAIN
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, DRAIN)
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
        for _ in range(left):
            self._count("dropped")
        if left:
            log("webhook_dropped", level="warning", host=self.host, events=left, why="the server shut down")

    def submit(self, event: Event) -> None:
        """Send an event in the background; never waits, and may be called from any thread."""
        notification = make_notification(event, self._server)
        with self._changed:
            full = len(self._waiting) >= self._size
            if full:
                self._waiting.popleft()
            self._waiting.append(notification)
            self._changed.notify()
        if full:
            self._count("dropped")
            log("webhook_dropped", level="warning", host=self.host, events=1, why="too many events wait")

    def _run(self) -> None:
        while (notification := self._next()) is not None:
            self._count("sent" if self._deliver(notification) else "failed")

    def _next(self) -> Notification | None:
        """The oldest event; None once there will be no more."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting or self._is_late():
                return None
            return self._waiting.popleft()

    def _deliver(self, notification: Notification) -> bool:
        """Try until it is accepted, refused for good, or out of attempts; returns whether it was accepted."""
        attempt = 0
        while True:
            status = self._attempt(notification)
            if isinstance(status, int) and 200 <= status < 300:
                return True
            final = attempt == self._retries or (isinstance(status, int) and status not in RETRIED) or self._is_late()
            attempt += 1
            level = "error" if final else "warning"
            log("webhook_failed", level=level, host=self.host, attempt=attempt, final=final, status=status)
            if final:
                return False
            with self._changed:  # at shutdown there is no time for pauses
                self._changed.wait_for(lambda: self._closing, min(self._pause * 2 ** (attempt - 1), MAX_PAUSE))

    def _attempt(self, notification: Notification) -> int | str:
        """The HTTP status of one attempt, or a description of the error."""
        headers = {"Content-Type": "application/json", "User-Agent": "queen", "Idempotency-Key": notification.key}
        if self._secret is not None:
            headers["X-Queen-Signature"] = sign(self._secret, notification.body)
        request = urllib.request.Request(  # noqa: S310 (http or https)
            self._url, notification.body, headers, method="POST"
        )
        left = self._deadline - time.monotonic() if self._closing else self._timeout
        try:
            with self._opener.open(request, timeout=max(0.01, min(self._timeout, left))) as response:
                return int(response.status)
        except (OSError, HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    def _is_late(self) -> bool:
        return self._closing and time.monotonic() >= self._deadline

    def _count(self, outcome: Outcome) -> None:
        if self._metrics is not None:
            self._metrics.webhook(outcome)


def make_notification(event: Event, server: str) -> Notification:
    """An event as it is sent. Its idempotency key is the same whichever server sends it, and however often."""
    facts = json.dumps([event.what, event.id, event.name, event.group, event.at])
    key = hashlib.sha256(facts.encode()).hexdigest()[:32]
    content = {
        "event": event.what,
        "id": event.id,
        "name": event.name,
        "group": event.group,
        "client": event.client,
        "wealth": min(event.wealth, sys.float_info.max),  # JSON knows no infinity
        "queries": event.queries,
        "coverage": {str(label): share for label, share in event.coverage.items()},
        "at": event.at,
        "server": server,
        "idempotency_key": key,
    }
    return Notification(key, json.dumps(content, separators=(",", ":")).encode())


def sign(secret: str, body: bytes) -> str:
    """The signature of a body, for the receiver to compare with `hmac.compare_digest`."""
    return f"sha256={hmac.new(secret.encode(), body, 'sha256').hexdigest()}"


def _check_url(url: str) -> str:
    """Check the URL, and return its host: the rest of it may be a secret and is never logged."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError("the webhook is not a URL; expected https://HOST/PATH") from error
    if parts.scheme not in ("http", "https") or not host:
        raise OptionError(f"expected a webhook as https://HOST/PATH, got scheme '{parts.scheme}'")
    if parts.username or parts.password:
        raise OptionError("a webhook's URL may not hold a password: use --webhook-secret-file, which signs every post")
    if not url.isascii() or any(c.isspace() or ord(c) < 32 for c in url):
        raise OptionError("a webhook's URL must be plain ASCII without spaces")
    return host if port is None else f"{host}:{port}"
