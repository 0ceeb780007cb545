"""Places for connections: never more than allowed, and the waiting ones of whoever has most go first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.serve.limits.connections import Connections, Crowd, address_of
from queen.serve.network import TrustedProxies

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "192.168.0.1")
PROXY = HOSTS[-1]
STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "open", "work", "wait", "close"]), st.sampled_from(HOSTS), st.integers(0, 99)),
    max_size=80,
)


class Wire:
    """A connection as the counter sees it."""

    def __init__(self, places: Connections, host: str) -> None:
        self.places, self.host, self.evicted = places, host, False
        self.crowd: Crowd | None = None

    def evict(self) -> None:
        assert self.crowd is not None
        assert self in self.crowd.waiting
        self.evicted = True
        self.leave()

    def leave(self) -> None:
        if self.crowd is not None:
            self.places.leave(self, self.crowd)
            self.crowd = None


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_places_are_counted_and_never_more_than_allowed(steps):
    notes: list[tuple[str, str]] = []
    places = Connections(
        6, 3, proxies=TrustedProxies(["192.168.0.0/16"]), note=lambda why, who: notes.append((why, who))
    )
    wires: list[Wire] = []
    for action, host, number in steps:
        if action == "open":
            wire = Wire(places, host)
            before, told = Counter(one.host for one in wires), len(notes)
            wire.crowd = places.enter(wire, host)
            gone = [one for one in wires if one.evicted]
            wires = [one for one in wires if not one.evicted]
            if wire.crowd is not None:
                wires.append(wire)
            is_tight = sum(before.values()) == 6 or (host != PROXY and before[host] == 3)
            assert (len(notes) > told) == is_tight  # only then is anybody refused or evicted
            assert len(gone) == (wire.crowd is not None and is_tight)
            assert all(one.host != PROXY and before[one.host] >= before[host] for one in gone)
        elif wires:
            wire = wires[number % len(wires)]
            assert wire.crowd is not None
            if action == "work":
                wire.crowd.waiting.pop(wire, None)
            elif action == "wait":
                wire.crowd.waiting[wire] = None
            else:
                wire.leave()
                wires.remove(wire)
        counts = Counter(one.host for one in wires)
        assert places.total == sum(counts.values()) <= 6
        assert all(places.count(host) == counts[host] for host in HOSTS)
        assert max((counts[host] for host in HOSTS[:-1]), default=0) <= 3


def fill(places: Connections, host: str, count: int) -> list[Wire]:
    wires = [Wire(places, host) for _ in range(count)]
    for wire in wires:
        wire.crowd = places.enter(wire, host)
    return wires


def test_one_that_waits_longest_goes_for_a_new_one_of_its_address():
    places = Connections(100, 3)
    first, second, third = fill(places, HOSTS[0], 3)
    assert first.crowd is not None
    first.crowd.waiting.pop(first)  # it is being answered
    assert places.enter(Wire(places, HOSTS[0]), HOSTS[0]) is not None
    assert (first.evicted, second.evicted, third.evicted) == (False, True, False)


def test_who_has_most_makes_room_for_others_and_not_the_other_way_round():
    places = Connections(8, 6)
    many, few = fill(places, HOSTS[0], 6), fill(places, HOSTS[1], 2)
    assert [wire.crowd is None for wire in fill(places, HOSTS[2], 2)] == [False, False]
    assert [wire.evicted for wire in many] == [True, True, False, False, False, False]
    fill(places, HOSTS[0], 3)
    assert not any(wire.evicted for wire in few)


def test_where_all_are_being_answered_a_new_one_is_refused():
    places = Connections(2, 2)
    for wire in fill(places, HOSTS[0], 2):
        assert wire.crowd is not None
        wire.crowd.waiting.clear()
    assert places.enter(Wire(places, HOSTS[1]), HOSTS[1]) is None
    assert (places.total, places.count(HOSTS[1])) == (2, 0)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (None, "unknown"),
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_one_of_ipv4_or_a_network_of_ipv6(host, address):
    assert address_of(host) == address


@pytest.mark.parametrize(
    ("network", "proxy", "other"),
    [
        ("10.0.0.0/8", "::ffff:10.1.2.3", "11.1.2.3"),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"),
        ("2001:db8::5/128", "2001:db8::5", "2001:db8::6"),
        ("2001:db8::1:0:0:0/80", "2001:db8::1:0:0:7", "2001:db8::2:0:0:7"),
    ],
)
def test_a_proxy_is_not_limited_and_its_neighbours_are(network, proxy, other):
    places = Connections(100, 2, proxies=TrustedProxies([network]))
    trusted, others = fill(places, proxy, 5), fill(places, other, 5)
    assert [wire.evicted for wire in trusted] == [False] * 5
    assert [wire.evicted for wire in others] == [True] * 3 + [False] * 2
    assert (places.count(proxy), places.count(other)) == (5, 2)
