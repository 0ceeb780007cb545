"""Notices posted to another service as signed JSON, by a thread of its own, so that no answer ever waits for it.

The ledger's events are the queue: what is posted next is the first notice after the last one that was delivered, whose
number is a fact in the ledger. So nothing is lost when a server is killed, and servers that share a ledger share the
work: what one could not deliver another does. A notice may arrive twice, with the same idempotency key.
"""

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
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from queen.errors import LedgerError, OptionError
from queen.ledger import Event, Ledger
from queen.ledger.words import NOTICES
from queen.serve.telemetry.log import log

if TYPE_CHECKING:
    from queen.serve.telemetry.metrics import Metrics, Outcome

DRAIN = 2.0  # seconds at shutdown to send what still waits
LOOK_EVERY = 30.0  # seconds after which to look for what other servers could not deliver
MAX_PAUSE = 30.0  # seconds between two attempts
LATE_ATTEMPTS = 6  # attempts after which a failure is an error in the log, no longer a warning
PASSING = frozenset((408, 425, 429))  # refusals (4xx) that may pass; all others are final


@dataclass(frozen=True)
class Notification:
    """One event as it is sent: its number, its idempotency key and the JSON body."""

    id: int
    key: str
    body: bytes


class Webhook:
    """Posts the notices of a ledger to one URL, in order; each until it is accepted, or refused for good.

    The pauses between attempts grow up to half a minute. Where nothing was ever posted to this URL, what is in the
    ledger at the start is old news and is not sent. `secret` signs every body: X-Queen-Signature holds "sha256=" and
    the HMAC-SHA256 in hexadecimal. Redirects are not followed: the log says so until the URL is set right.
    """

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        *,
        secret: str | None = None,
        timeout: float = 5.0,
        pause: float = 0.5,
        server: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.host = _check_url(url)
        if timeout <= 0 or pause < 0:
            raise OptionError("a webhook needs a timeout above 0 and a pause of 0 or more")
        self._url, self._ledger, self._secret = url, ledger, secret
        self._timeout, self._pause, self._metrics = timeout, pause, metrics
        self._server = socket.gethostname() if server is None else server
        self._cursor = f"webhook {hashlib.sha256(url.encode()).hexdigest()[:16]}"  # the fact: last event delivered
        self._changed = threading.Condition()
        self._has_news = True
        self._closing = False
        self._deadline = 0.0  # of the last attempts, once it is closing
        self._thread = threading.Thread(target=self._run, name="queen-webhook", daemon=True)
        # Without urllib's handlers of redirects and errors: a response is a response, whatever its status.
        self._opener = urllib.request.OpenerDirector()
        for handler in (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
            self._opener.add_handler(handler())

    def begin(self) -> None:
        """Remember where the ledger's events stand, unless somebody has delivered some already."""
        if self._ledger.fact(self._cursor) is None:
            events = self._ledger.events(newest=1)
            self._ledger.set_fact(self._cursor, str(events[-1].id if events else 0), replace=False)

    async def start(self) -> None:
        """Begin to send."""
        await asyncio.to_thread(self.begin)
        self._thread.start()

    async def stop(self) -> None:
        """Send what still waits, for two seconds at most; the rest is sent after the next start."""
        with self._changed:
            self._closing, self._deadline = True, time.monotonic() + DRAIN
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, DRAIN)

    def wake(self) -> None:
        """Say that there may be something to send; never waits, and may be called from any thread."""
        with self._changed:
            self._has_news = True
            self._changed.notify()

    def _run(self) -> None:
        while self._wait_for_news():
            try:
                self._send_news()
            except LedgerError as error:
                log("webhook_waits", level="warning", host=self.host, error=str(error))

    def _wait_for_news(self) -> bool:
        """Wait until there may be something to send; False once nothing may be sent any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news or self._closing, LOOK_EVERY)
            has_news, self._has_news = self._has_news, False
            return not self._closing or (has_news and not self._is_late())

    def _send_news(self) -> None:
        """Send all notices after the last one delivered."""
        last = int(self._ledger.fact(self._cursor) or 0)
        for event in self._ledger.events(after=last):
            if self._is_late():
                return
            if event.what in NOTICES:
                outcome = self._deliver(make_notification(event, self._server))
                if outcome is None:
                    return
                self._count(outcome)
            self._ledger.set_fact(self._cursor, str(event.id))

    def _deliver(self, notification: Notification) -> Outcome | None:
        """Try until it is accepted (sent) or refused for good (failed); None if there is no time left for it."""
        attempt = 0
        while True:
            status = self._attempt(notification)
            if isinstance(status, int) and 200 <= status < 300:
                return "sent"
            final = isinstance(status, int) and 400 <= status < 500 and status not in PASSING
            attempt += 1
            self._log_failure(notification.id, attempt, status, final=final)
            if final:
                return "failed"
            if self._is_late() or (self._closing and attempt >= LATE_ATTEMPTS):
                return None
            with self._changed:  # at shutdown there is no time for pauses
                self._changed.wait_for(lambda: self._closing, min(self._pause * 2 ** min(attempt - 1, 20), MAX_PAUSE))

    def _log_failure(self, number: int, attempt: int, status: int | str, *, final: bool) -> None:
        is_redirect = isinstance(status, int) and 300 <= status < 400  # it stays until somebody corrects the URL
        level = "error" if final or is_redirect or attempt >= LATE_ATTEMPTS else "warning"
        why = {"why": "redirects are not followed: set the webhook to where it leads"} if is_redirect else {}
        about = {"id": number, "attempt": attempt, "final": final, "status": status}
        log("webhook_failed", level=level, host=self.host, **about, **why)

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
    return Notification(event.id, key, json.dumps(content, separators=(",", ":")).encode())


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
