"""Proxies that nobody has named: all users behind one would be one client, and pay for each other.

Whoever sends such headers itself causes a line in the log and a piece of advice, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from queen.serve.telemetry.log import log

MAX_PEERS = 32  # that are remembered, and logged
MAX_ORIGINS = 16  # different values that are counted for each


class UnnamedProxies:
    """Peers that forward requests of others, as their headers say, though they are no trusted proxies."""

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        self._on_request = on_request
        self._origins: dict[str, set[str]] = {}  # by address of the peer, whom it says it speaks for

    def note(self, peer: str, forwarded: str) -> None:
        """Take note of a request from this address with this X-Forwarded-For, or "" if it has another such header."""
        self._on_request()
        origins = self._origins.get(peer)
        if origins is None:
            if len(self._origins) >= MAX_PEERS:
                return
            origins = self._origins[peer] = set()
            log("proxy nobody has named", level="warning", peer=peer, why=_explain(peer))
        if len(origins) < MAX_ORIGINS:
            origins.add(forwarded.rpartition(",")[2].strip()[:64])

    @property
    def advice(self) -> list[str]:
        """A sentence per peer for operators, those that speak for most others first."""
        most_first = sorted(self._origins.items(), key=lambda item: -len(item[1]))
        return [f"{_explain(peer)} (so far it named {_count(origins)})" for peer, origins in most_first]


def _explain(peer: str) -> str:
    return (
        f"requests from {peer} say that they were forwarded: if this is a proxy of yours, all its users are one client "
        f"now, and --trusted-proxy {peer} tells them apart"
    )


def _count(origins: set[str]) -> str:
    number = len(origins - {""})
    if number == 1:
        return "1 address"
    return f"{number}{' or more' if len(origins) == MAX_ORIGINS else ''} different addresses"
