"""Trusted proxies are known by their whole addresses, however address and network are written."""

from __future__ import annotations

import pytest

from queen.errors import OptionError
from queen.serve.network import TrustedProxies, parse_address, parse_network


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.1.2.3", "11.0.0.1"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.1"),
        ("2001:db8::/32", "2001:db8::7", "2001:db9::7"),
        ("2001:db8::5/128", "2001:db8::5", "2001:db8::6"),
        ("2001:db8::1:0:0:0/80", "2001:db8::1:0:0:7", "2001:db8::7"),
        ("fe80::/10", "fe80::1%eth0", "2001:db8::1"),
    ],
)
def test_proxies_are_known_by_their_networks(network, inside, outside):
    proxies = TrustedProxies(["192.0.2.1", network])
    assert parse_address(inside) in proxies
    assert parse_address(outside) not in proxies
    assert parse_address(inside) not in TrustedProxies()


@pytest.mark.parametrize("text", [None, "", "nobody", "10.0.0.1:80", "10.0.0.0/8"])
def test_what_is_no_address_is_no_proxy(text):
    assert parse_address(text) is None
    assert parse_address(text) not in TrustedProxies(["0.0.0.0/0", "::/0"])


def test_what_is_no_network_is_an_error_for_the_operator():
    with pytest.raises(OptionError, match=r"such as 10.0.0.0/8, got '10.0.0.0/33'"):
        parse_network("10.0.0.0/33")
