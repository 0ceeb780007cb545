"""Ratios of times, on a clock that only moves when a test says so."""

from __future__ import annotations

import time

import pytest
import torch

from queen.bench.speed.timing import (
    WARM_UP_TURNS,
    paired_ratio,
    ratios_to_none,
    seconds_per_thousand,
    time_in_turns,
)
from queen.errors import OptionError

BATCHES = list(range(7))


class Clock:
    """A clock that only moves when a function or service of its own is called."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, []

    def takes(self, name: str, *seconds: float):
        """A function that takes these times, one per call, and the last one from then on."""
        left = list(seconds)

        def call(_: object) -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call

    def service(self, name: str, *seconds: float) -> Service:
        return Service(self, name, *seconds)


class Service:
    def __init__(self, clock: Clock, name: str, *seconds: float) -> None:
        self.answer, self.clients = clock.takes(name, *seconds), []

    def client(self, name: str):
        self.clients.append(name)
        return self.answer


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_the_ratio_of_two_times(clock):
    assert paired_ratio(clock.takes("guarded", 3.0), clock.takes("plain", 2.0), BATCHES) == 1.5


def test_the_ratio_forgets_the_warm_up_and_one_busy_moment(clock):
    guarded = clock.takes("guarded", 50.0, 60.0, 3.0, 90.0, 3.0)
    assert paired_ratio(guarded, clock.takes("plain", 1.0), BATCHES[:5]) == 3.0


def test_pairs_are_interleaved_and_both_sides_start_equally_often(clock):
    assert paired_ratio(clock.takes("g", 1.0), clock.takes("p", 1.0), BATCHES[:6]) == 1.0
    pairs = ["".join(clock.calls[i : i + 2]) for i in range(0, len(clock.calls), 2)]
    assert sorted(pairs) == ["gp"] * 3 + ["pg"] * 3


def test_ratios_are_medians_over_the_turns(clock):
    services = {"none": clock.service("none", 70.0, 2.0), "slow": clock.service("slow", 1.0, 3.0, 90.0, 3.0)}
    assert ratios_to_none(time_in_turns(services, torch.zeros(500, 3), 5)) == {"none": 1.0, "slow": 1.5}


def test_services_take_turns_and_every_turn_has_a_new_client(clock):
    services = {"none": clock.service("none", 2.0), "slow": clock.service("slow", 3.0)}
    turns = time_in_turns(services, torch.zeros(500, 3), 3)
    assert turns == {"none": [2.0] * 3, "slow": [3.0] * 3}
    assert seconds_per_thousand(turns, 500) == {"none": 4.0, "slow": 6.0}
    assert clock.calls == ["none", "slow"] * (3 + WARM_UP_TURNS)
    assert len(set(services["slow"].clients)) == 3 + WARM_UP_TURNS


def test_there_must_be_something_to_compare_with(clock):
    with pytest.raises(OptionError, match="'none'"):
        time_in_turns({"slow": clock.service("slow", 1.0)}, torch.zeros(1, 3), 1)
