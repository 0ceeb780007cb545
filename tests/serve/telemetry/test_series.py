"""Counters by the second: what was recorded is read back, whatever the clock did, in the same memory."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.serve.telemetry.series import COUNTS, Series

steps = st.lists(
    st.tuples(st.integers(0, 7), st.text("ABCD", max_size=4), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    max_size=60,
)


class Clock:
    now = 1_700_000_000.25

    def __call__(self) -> float:
        return self.now


@given(steps)
def test_counts_are_those_of_the_last_seconds_and_older_ones_are_forgotten(stream):
    clock = Clock()
    series = Series(seconds=12, clock=clock)
    began, expected = int(clock.now), defaultdict[int, Counter[str]](Counter)
    for forward, letters, alarmed, refused, error in stream:
        clock.now += forward
        series.request(0.002, error=error)
        series.batch(len(letters), Counter(letters), alarmed=alarmed, refused=refused)
        more = {"requests": 1, "rows": len(letters), "alarmed": alarmed, "refused": refused, "errors": int(error)}
        expected[int(clock.now)] += Counter(letters) + Counter(more)
    clock.now += 1
    content = series.read()
    assert content["time"] == list(range(int(clock.now) - 11, int(clock.now)))
    for name in COUNTS:
        known = [None if second < began else expected[second][name] for second in content["time"]]
        assert content[name] == known


@given(st.lists(st.floats(0.0005, 30.0), min_size=1, max_size=200))
def test_latencies_are_right_to_within_an_eighth(latencies):
    clock = Clock()
    series = Series(clock=clock)
    for seconds in latencies:
        series.request(seconds)
    clock.now += 1
    content = series.read(1)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        exact = 1e3 * float(np.quantile(latencies, share, method="inverted_cdf"))
        assert content[name] == [pytest.approx(exact, rel=0.126)]


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 1e9, float("inf"), float("nan")])
def test_absurd_latencies_are_counted_somewhere(seconds):
    clock = Clock()
    series = Series(clock=clock)
    series.request(seconds)
    clock.now += 1
    assert series.read(1)["requests"] == [1]
    assert 0.2 < series.read(1)["p50"][0] < 61_000


def test_a_second_without_requests_has_no_latency():
    series = Series()
    assert set(series.read()["p50"]) == set(series.read()["p99"]) == {None}
    assert len(series.read()["time"]) == 899


def test_a_second_in_which_nothing_happened_is_not_one_in_which_the_server_was_down():
    clock = Clock()
    began = int(clock.now)
    series = Series(clock=clock)
    clock.now += 20
    content = series.read(30)
    assert content["requests"] == [None] * 10 + [0] * 20
    assert content["time"][10] == began
    clock.now = began - 60  # set back
    series.request(0.01)
    clock.now += 5
    assert series.read(6)["requests"] == [None, 1, 0, 0, 0, 0]


def test_memory_does_not_grow():
    clock = Clock()
    series = Series(clock=clock)
    before = [len(part) for part in (series._stamps, series._counts, series._bins)]
    for _ in range(3000):
        clock.now += 1
        series.request(0.01)
    assert [len(part) for part in (series._stamps, series._counts, series._bins)] == before
    assert sum(before) * 8 < 700_000
