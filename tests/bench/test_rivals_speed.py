from __future__ import annotations

import math
import time

import pytest
import torch

from queen.bench import rivals_speed
from queen.bench.rivals_speed import query_times, seconds_per_thousand, solver_ratios
from queen.errors import OptionError


def test_the_solvers_are_faster_than_the_usual_ones():
    found = solver_ratios(100)
    assert set(found) == {"modelguard_w_k10", "modelguard_w_k100", "mad_k10"}
    assert all(math.isfinite(ratio) and ratio > 5 for ratio in found.values())


class Clock:
    """A clock that only moves when a service answers."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, []

    def service(self, name: str, *seconds: float) -> Service:
        return Service(self, name, list(seconds))


class Service:
    def __init__(self, clock: Clock, name: str, seconds: list[float]) -> None:
        self.clock, self.name, self.seconds = clock, name, seconds

    def client(self, client: str):
        def answer(x: torch.Tensor) -> torch.Tensor:
            self.clock.calls.append((self.name, client))
            self.clock.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
            return x

        return answer


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_times_are_medians_in_times_of_no_defense(clock):
    services = {"none": clock.service("none", 70.0, 2.0), "slow": clock.service("slow", 1.0, 3.0, 90.0, 3.0)}
    x = torch.zeros(500, 3)
    assert query_times(services, x, 5) == {"none": 1.0, "slow": 1.5}


def test_seconds_are_for_a_thousand_queries_of_new_clients_in_turn(clock):
    services = {"none": clock.service("none", 2.0), "slow": clock.service("slow", 3.0)}
    assert seconds_per_thousand(services, torch.zeros(500, 3), 3) == {"none": 4.0, "slow": 6.0}
    assert [name for name, _ in clock.calls] == ["none", "slow"] * (3 + rivals_speed.WARM_UP)
    assert len(set(clock.calls)) == len(clock.calls)


def test_there_must_be_something_to_compare_with(clock):
    with pytest.raises(OptionError, match="'none'"):
        query_times({"slow": clock.service("slow", 1.0)}, torch.zeros(1, 3), 1)
