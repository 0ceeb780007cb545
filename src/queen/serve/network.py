"""Addresses of peers, and the networks of proxies that the operator trusts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from queen.errors import OptionError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """Networks of proxies that are trusted: their connections belong to many clients, and they say to whom."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(parse_network(cidr) for cidr in networks)

    def __contains__(self, address: Address | None) -> bool:
        """Whether an address, as `parse_address` gives it, is a proxy's; None is nobody's."""
        return address is not None and any(address in network for network in self._networks)


def parse_address(text: str | None) -> Address | None:
    """The address in a text, as IPv4 where it is IPv4 mapped into IPv6; None if the text is no address."""
    try:
        address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def parse_network(cidr: str) -> Network:
    """The network in a text, as IPv4 where it is IPv4 mapped into IPv6; raises `OptionError` if it is none."""
    try:
        network = ipaddress.ip_network(cidr, strict=False)
        mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
        return network if mapped is None else ipaddress.ip_network(f"{mapped}/{max(0, network.prefixlen - 96)}")
    except ValueError as error:
        raise OptionError(f"expected the network of a trusted proxy such as 10.0.0.0/8, got '{cidr}'") from error
