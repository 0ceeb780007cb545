"""The cache of states: as many bytes as it may take, whatever the states hold, and the estimate is near the truth."""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.ledger.sqlite.cache import StateCache, state_bytes
from queen.ledger.state import ScopeState
from queen.options import Limits
from queen.sentinel.bets import LANES
from queen.sentinel.wealth import Winnings


def deep_size(thing: object, seen: set[int]) -> int:
    """Bytes of an object with all that only it refers to."""
    if id(thing) in seen or thing is None or isinstance(thing, bool | type):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, np.ndarray | array | str | int | float):
        return size
    if isinstance(thing, dict):
        return size + sum(deep_size(part, seen) for pair in thing.items() for part in pair)
    if isinstance(thing, list | tuple | set):
        return size + sum(deep_size(part, seen) for part in thing)
    names = getattr(type(thing), "__slots__", None) or vars(thing)
    return size + sum(deep_size(getattr(thing, name), seen) for name in names)


def make_state(classes: int, records: int, pictures: int, answered: int, tests: int) -> ScopeState:
    """A state with so many of everything, records spread over the classes."""
    rng, state = np.random.default_rng(records), ScopeState()
    limits = Limits(radius=0.01)
    for label in range(classes):
        state.class_state(label, limits)
    for number in range(records if classes else 0):
        state.classes[number % classes].add(*map(float, rng.uniform(-0.7, 0.7, 2)))
    for _ in range(pictures):
        state.memory.add_picture(tuple(map(float, rng.normal(0, 1e3, 8))))
    for number in range(answered):
        state.memory.add_answered(number + 1)
    for test in range(tests):
        winnings = state.winnings[test] = Winnings.empty(3)
        for label in range(classes):
            winnings.counts[label] = np.zeros(1 + 3 + 3 * LANES, np.int64)
    return state


SIZES = {
    "classes": st.integers(0, 200),
    "records": st.integers(0, 400),
    "pictures": st.integers(0, 1500),
    "answered": st.integers(0, 1500),
    "tests": st.integers(0, 2),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**SIZES)
def test_the_estimate_is_near_the_truth(classes, records, pictures, answered, tests):
    state = make_state(classes, records, pictures, answered, tests)
    true, estimate = deep_size(state, set()), state_bytes(state, records if classes else 0)
    assert 0.6 * true < estimate < 2.0 * true + 2000


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    limit=st.integers(0, 60_000),
    batches=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=4), max_size=25),
)
def test_the_cache_holds_what_was_used_last_within_its_bytes(limit, batches):
    """Against a list of what was used last, that drops the oldest until the rest fits."""
    cache, reference, everything = StateCache(limit), OrderedDict(), {}
    limits = Limits(radius=0.01)
    for number, batch in enumerate(batches):
        recorded = []
        for client, records in batch:
            key = False, f"client {client}"
            state = cache.get(key)
            assert (state is None) == (key not in reference)
            if state is None:
                state = everything.setdefault(client, ScopeState())
                cache.add(key, state)
            for _ in range(records):
                state.class_state(client, limits).add(*np.random.default_rng(number).uniform(-0.5, 0.5, 2))
                recorded.append(state)
            reference[key] = state
            reference.move_to_end(key)
        cache.measure({(False, f"client {client}") for client, _ in batch}, recorded)
        sizes = {
            key: state_bytes(state, sum(len(one.records) for one in state.classes.values())) + len(key[1])
            for key, state in reference.items()
        }
        while sum(sizes[key] for key in reference) > limit and reference:
            reference.popitem(last=False)
        assert cache.bytes == sum(sizes[key] for key in reference) <= max(limit, 0)
        assert len(cache) == len(reference)
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)


def test_extra_answers_are_low_once_exactly_from_four_fifths_on() -> None:
    state = ScopeState()
    for limit in (*range(1, 2000), 10**9, 10**9 + 1):
        first = -(-4 * limit // 5)
        for state.extra in (first - 1, first, first + 1):
            expected = "budget spent" if state.extra == limit else "budget low" if state.extra == first else ""
            assert state.extra_mark(limit) == expected
