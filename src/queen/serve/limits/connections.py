"""Open connections, counted in all and by address, so that nobody can take the places of everybody else.

Where a place is missing, the connection that has waited longest for its client to send a whole request is closed for
the new one: of the address itself that has too many, or, where all places are taken, of the address that has most.
Clients that send half a request and wait lose their places like that, those whose requests are being answered never.
The connections of a trusted proxy belong to many clients: they are counted, but not limited, and not closed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Protocol

from queen.serve.network import TrustedProxies, parse_address

UNKNOWN = "unknown"  # where a connection has no address
NETWORK_BITS = 64  # of an IPv6 address: a single household has all the rest
Note = Callable[[str, str], None]


class Evictable(Protocol):
    """A connection that can be closed for another one."""

    def evict(self) -> None:
        """Hang up."""


class Crowd:
    """The connections of one address; those that lack a whole request wait, the longest first."""

    def __init__(self, address: str, is_proxy: bool) -> None:
        self.address, self.is_proxy = address, is_proxy
        self.count = 0
        self.waiting: dict[Evictable, None] = {}


class Connections:
    """Places for connections; `note` hears why one is refused or evicted, and its address."""

    def __init__(
        self,
        most: int,
        most_per_address: int,
        *,
        proxies: TrustedProxies | None = None,
        note: Note = lambda reason, address: None,
    ) -> None:
        self._most, self._most_per_address, self._note = most, most_per_address, note
        self._proxies = proxies or TrustedProxies()
        self._total = 0
        self._crowds: dict[str, Crowd] = {}

    @property
    def total(self) -> int:
        """Connections that have a place."""
        return self._total

    def count(self, host: str | None) -> int:
        """Those of one address."""
        crowd = self._crowds.get(self._crowd_name(host)[0])
        return crowd.count if crowd else 0

    def enter(self, connection: Evictable, host: str | None) -> Crowd | None:
        """The crowd that the connection belongs to from now on, where it waits; None if there is no place for it."""
        address, is_proxy = self._crowd_name(host)
        crowd = self._crowds.get(address) or Crowd(address, is_proxy)
        if not self._make_room(crowd):
            return None
        self._crowds[address] = crowd
        crowd.count += 1
        self._total += 1
        crowd.waiting[connection] = None
        return crowd

    def leave(self, connection: Evictable, crowd: Crowd) -> None:
        """Give a place back; exactly once."""
        crowd.waiting.pop(connection, None)
        crowd.count -= 1
        self._total -= 1
        if not crowd.count:
            del self._crowds[crowd.address]

    def _crowd_name(self, host: str | None) -> tuple[str, bool]:
        """The address that a connection is counted with, and whether it is a proxy's, which is counted alone."""
        proxy = proxy_of(host, self._proxies)
        return (address_of(host), False) if proxy is None else (proxy, True)

    def _make_room(self, crowd: Crowd) -> bool:
        """Whether there is a place for one more of this crowd, if need be that of another connection."""
        if crowd.count >= self._most_per_address and not crowd.is_proxy:
            return self._evict_from(crowd, "too many of one address")
        if self._total < self._most:
            return True
        crowds = [one for one in self._crowds.values() if one.waiting and one.count >= crowd.count and not one.is_proxy]
        return self._evict_from(max(crowds, key=lambda one: one.count, default=crowd), "too many in all")

    def _evict_from(self, crowd: Crowd, why: str) -> bool:
        self._note(why, crowd.address)
        victim = next(iter(crowd.waiting), None)
        if victim is None or crowd.is_proxy:
            return False
        victim.evict()
        return True


def proxy_of(host: str | None, proxies: TrustedProxies) -> str | None:
    """The whole address of a trusted proxy; None if the host is none: others of its network are not trusted."""
    address = parse_address(host)
    return str(address) if address in proxies else None


def address_of(host: str | None) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits."""
    address = parse_address(host)
    if address is None:
        return UNKNOWN
    if address.version == 4:
        return str(address)
    rest = 128 - NETWORK_BITS
    return f"{ipaddress.IPv6Address(int(address) >> rest << rest)}/{NETWORK_BITS}"
