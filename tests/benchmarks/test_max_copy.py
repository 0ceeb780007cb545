"""The program that tries `max_copy` on the benchmark's thieves: what it promises, refuses and notices."""

from __future__ import annotations

import pytest

from benchmarks.price.max_copy import sentence, try_bound
from queen.cache import Cache
from tests.support.benchmarks import tiny_protectee
from tests.support.prices import curve_of

OPTIONS = {"map_epochs": 20}
STEEP = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2), (3000, "held-out", False, 0.98, 0.99, 1.0)])


def test_a_bound_that_is_not_promised_is_told_as_a_refusal(tmp_path):
    found = try_bound(0.15, STEEP, tiny_protectee(), Cache(tmp_path), seeds=[0], options=OPTIONS)
    assert not found["promised"]
    assert "too easy" in sentence(found)


@pytest.mark.slow
def test_thieves_get_no_more_answers_than_promised_and_are_compared_with_the_bound(tmp_path):
    found = try_bound(0.6, STEEP, tiny_protectee(), Cache(tmp_path), seeds=[0], options=OPTIONS)
    assert [thief["attack"] for thief in found["thieves"]] == ["direct", "label_only"]
    assert all(0 < thief["answered"] <= found["answers"] for thief in found["thieves"])
    assert found["holds"] == (found["best"] < 0.6 + found["spread"])
    lying = curve_of([(30, "held-out", False, 0, 0, 0.001), (3000, "held-out", False, 0, 0, 0.002)])
    broken = try_bound(0.003, lying, tiny_protectee(), Cache(tmp_path), seeds=[0], options=OPTIONS)
    assert not broken["holds"]  # a curve that promises too much is noticed
    assert "does NOT hold" in sentence(broken)
