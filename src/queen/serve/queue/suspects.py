"""Clients with a request that the network's server did not take: theirs are asked apart, so that others do not wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from queen.errors import UpstreamError
from queen.serve.queue.request_queue import PendingRequest
from queen.serve.telemetry.log import log

SUSPECTED = 1.0  # seconds after the last such request
MOST_QUESTIONS = 12  # that a batch of suspects is worth: enough to find two requests among thirty


class Suspects:
    """Whose requests lately made a question upstream fail, and how many questions the present batch of theirs took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._questions = 0

    def divide(self, requests: Sequence[PendingRequest]) -> tuple[list[PendingRequest], list[PendingRequest]]:
        """The requests of a new batch, without and with those of suspects."""
        self._questions, now = 0, self._clock()
        self._until = {client: until for client, until in self._until.items() if until > now}
        suspected = [request for request in requests if request.caller.client in self._until]
        return [request for request in requests if request.caller.client not in self._until], suspected

    def may_ask(self, requests: Sequence[PendingRequest]) -> bool:
        """Whether these may be asked together: those of suspects alone only `MOST_QUESTIONS` times a batch."""
        if any(request.caller.client not in self._until for request in requests):
            return True
        self._questions += 1
        return self._questions <= MOST_QUESTIONS

    def add(self, request: PendingRequest, error: UpstreamError) -> None:
        """The upstream did not take this request, which was asked alone."""
        client, now = request.caller.client, self._clock()
        if client not in self._until:
            log("the upstream does not take a request", level="warning", client=client, kind=error.kind)
        self._until[client] = now + SUSPECTED


def halves(requests: Sequence[PendingRequest]) -> tuple[list[PendingRequest], list[PendingRequest]]:
    """The requests in two parts, those of a client together."""
    turns = {client: turn for turn, client in enumerate(dict.fromkeys(one.caller.client for one in requests))}
    ordered = sorted(requests, key=lambda request: turns[request.caller.client])
    middle = len(ordered) // 2
    return ordered[:middle], ordered[middle:]
