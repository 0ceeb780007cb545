import dataclasses
import math

import numpy as np
import pytest
import torch

from queen.types import MIN_RADIUS, Limits, LimitsError, Verdict


def test_the_defaults_are_the_papers_in_relative_units():
    assert Limits() == Limits(radius=0.02, threshold=0.2)


@pytest.mark.parametrize("radius", [0.0, -0.1, math.nan, math.inf, -math.inf, MIN_RADIUS / 2, (), [], (0.1, 0.0),
                                    (0.1, math.nan), (0.1, math.inf)], ids=str)  # fmt: skip
def test_a_radius_that_makes_no_sense_is_refused(radius):
    with pytest.raises(LimitsError, match="radius"):
        Limits(radius=radius)


@pytest.mark.parametrize("threshold", [-1e-9, -1.0, math.nan, math.inf, -math.inf], ids=str)
def test_a_threshold_that_makes_no_sense_is_refused(threshold):
    with pytest.raises(LimitsError, match="threshold"):
        Limits(threshold=threshold)


@pytest.mark.parametrize(
    "wrong",
    [{"radius": "0.02"}, {"radius": None}, {"radius": (0.1, "x")}, {"radius": b"ab"}, {"radius": 10**400},
     {"threshold": "0.2"}, {"threshold": None}],
    ids=["text", "None", "text in a tuple", "bytes", "beyond floats", "text threshold", "no threshold"],
)  # fmt: skip
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(LimitsError):
        Limits(**wrong)


def test_radii_of_several_classes_become_a_tuple_of_floats():
    limits = Limits(radius=[1, 0.5])
    assert limits.radius == (1.0, 0.5)
    assert all(type(r) is float for r in limits.radius)
    assert limits == Limits(radius=(1.0, 0.5))
    assert hash(limits) == hash(Limits(radius=(1.0, 0.5)))


def test_the_smallest_radius_and_threshold_are_allowed():
    assert Limits(radius=MIN_RADIUS, threshold=0).threshold == 0


def test_limits_are_frozen_and_named():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().radius = 1.0
    with pytest.raises(TypeError):
        Limits(0.02, 0.2)


def test_verdicts_are_the_papers_conditions():
    assert {v.name: v.value for v in Verdict} == {"OUTSIDE": "A", "SPENT": "B", "FRESH": "C", "REPEAT": "D"}


def test_limits_take_numbers_of_numpy_and_torch():
    assert Limits(radius=np.float64(0.5), threshold=np.float32(0.25)) == Limits(radius=0.5, threshold=0.25)
    assert (
        Limits(radius=np.array([0.5, 0.25])) == Limits(radius=(0.5, 0.25)) == Limits(radius=torch.tensor([0.5, 0.25]))
    )
    with pytest.raises(LimitsError):
        Limits(radius=True)
