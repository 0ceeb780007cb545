import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from queen.errors import LimitsError, OptionError, RefusedError
from queen.ledger import MemoryLedger
from queen.options import (
    MAX_MARGIN,
    MIN_RADIUS,
    ON_ALARM,
    ON_SPENT,
    SCORES,
    SENTINEL_LIMITS,
    Group,
    Limits,
    Sentinel,
    default_limits,
)
from queen.types import Reply, Verdict


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


@pytest.mark.parametrize("extra", [-1, 1.5, 2000.0, True, None, "2000", 2**53 + 1, math.inf], ids=str)
def test_extra_answers_must_be_a_whole_number(extra):
    with pytest.raises(LimitsError, match="extra_answers"):
        Limits(extra_answers=extra)


def test_extra_answers_take_whole_numbers_of_numpy_and_torch():
    for extra in (np.int64(7), torch.tensor(7), np.uint8(7)):
        limits = Limits(extra_answers=extra)
        assert limits == Limits(extra_answers=7)
        assert type(limits.extra_answers) is int
    assert Limits(extra_answers=0).extra_answers == 0
    assert Limits(extra_answers=2**53).extra_answers == 2**53
    assert Limits().extra_answers == 2000


def test_limits_that_nobody_set_are_the_papers_or_the_sentinels():
    assert [default_limits(policy) for policy in ("paper", "strict", "artifact")] == [Limits()] * 3
    assert default_limits("sentinel") == SENTINEL_LIMITS == Limits(radius=5, threshold=50, extra_answers="10000/day")


@pytest.mark.parametrize("rho", [0.2, 1.0, SENTINEL_LIMITS.radius])
@pytest.mark.parametrize("kind", ["random", "packed", "in the middle"])
def test_no_class_is_ever_spent_under_the_sentinels_limits(kind, rho):
    """However a client chooses its points; sensitivity is highest in the middle, and most records fit on a lattice."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (2000, 2)) * (0.3 if kind == "in the middle" else 1)
    if kind == "packed":
        i, j = np.mgrid[-12:13, -12:13].reshape(2, -1)
        points = (rho + 1e-9) * np.stack([i + j / 2, j * math.sqrt(3) / 2], 1)
    limits = replace(SENTINEL_LIMITS, radius=rho, threshold=(rho + 2) ** 2)
    assert not limits.spends_classes
    judgement = (ledger := MemoryLedger()).judge("a", np.zeros(len(points), int), points, limits)
    assert not judgement.spent.any()
    assert judgement.letters.count("C") >= (70 if kind == "packed" and rho < 1 else 1)
    assert ledger.standing("a").coverage[0] < limits.threshold
    if rho == SENTINEL_LIMITS.radius:
        assert judgement.letters.count("C") == 1  # all others are counted


@pytest.mark.parametrize(
    ("limits", "ends"),
    [
        (Limits(), False),  # all of it is for life
        (Limits(extra_answers="2000/day"), True),
        (Limits(extra_answers="2000/day", threshold="0.2/day"), False),
        (Limits(extra_answers="2000/day", radius=0.2, threshold=4.83), True),
        (Limits(extra_answers="2000/day", radius=(0.2, 0.1), threshold=4.85), False),  # (rho + 2)^2
        (SENTINEL_LIMITS, False),
    ],
)
def test_who_gets_new_answers_every_day_should_not_lose_a_class_for_life(limits, ends):
    assert limits.ends_for_life is ends
    assert limits.spends_classes or not ends
    assert not SENTINEL_LIMITS.spends_classes


def test_a_groups_limits_are_mandatory_and_its_alarm_is_only_reported():
    with pytest.raises(TypeError):
        Group()
    for limits in (None, 0.02, {"radius": 0.02}):
        with pytest.raises(LimitsError, match="limits"):
            Group(limits=limits)
    for enforce in (1, None, "yes"):
        with pytest.raises(OptionError, match="enforce_alarm"):
            Group(limits=Limits(), enforce_alarm=enforce)
    assert Group(limits=Limits()).enforce_alarm is False


def test_the_sentinels_defaults_are_those_of_the_method():
    settings = Sentinel()
    assert (settings.alpha, settings.delta, settings.margin) == (1e-3, 0.05, 0.2)
    assert settings.scores == ("energy", "distance", "knn")
    assert (settings.on_alarm, settings.on_spent, settings.groups) == ("refuse", "refuse", {})
    assert (settings.after_alarm, settings.digits) == (2000, 2)


WRONG_SETTINGS = {
    **{f"{name} of {value}": {name: value} for name in ("alpha", "delta")
       for value in (0, 1, -0.1, 1.5, math.nan, math.inf, 1e-101, "0.1", True)},
    **{f"margin of {value}": {"margin": value} for value in
       (-0.1, -1e-9, math.nan, math.inf, MAX_MARGIN + 1e-6, "0.1", True, None)},
    "no alpha": {"alpha": None},
    "no delta": {"delta": None},
    "no scores": {"scores": ()},
    "scores that are one text": {"scores": "energy"},
    "scores that are a number": {"scores": 5},
    "scores that are None": {"scores": None},
    "a score that is a list": {"scores": (["energy"],)},
    "an unknown score": {"scores": ("energy", "entropy")},
    "a score twice": {"scores": ("energy", "energy")},
    "an unknown on_alarm": {"on_alarm": "honest"},
    "an unknown on_spent": {"on_spent": "label"},
    "nothing on alarm": {"on_alarm": None},
    **{f"digits of {value}": {"digits": value} for value in (0, -1, 7, 2.0, "3", True)},
    **{f"after_alarm of {value}": {"after_alarm": value} for value in (-1, 1.5, math.inf, 2**53 + 1, "9", True)},
    "groups that are None": {"groups": None},
    "groups that are a list": {"groups": ["tenant"]},
    "a group that is limits": {"groups": {"tenant": Limits()}},
    "a kind with a colon": {"groups": {"tenant:7": Group(limits=Limits())}},
    "a kind without a name": {"groups": {"": Group(limits=Limits())}},
    "a kind that is a number": {"groups": {7: Group(limits=Limits())}},
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(OptionError):
        Sentinel(**wrong)


def test_a_refused_score_lists_the_known_ones():
    with pytest.raises(OptionError, match=f"no score 'whatever'; known: {', '.join(SCORES)}"):
        Sentinel(scores=("energy", "whatever"))


@pytest.mark.parametrize("name", ["form", "truncate", "pool_below"])
def test_options_of_the_bands_are_gone(name):
    with pytest.raises(TypeError):
        Sentinel(**{name: None})


@pytest.mark.parametrize("margin", [0, 0.0, 0.3, MAX_MARGIN, np.float32(0.5), torch.tensor(1)], ids=str)
def test_any_margin_from_none_to_the_largest_is_a_float(margin):
    settings = Sentinel(margin=margin)
    assert settings.margin == float(margin)
    assert type(settings.margin) is float


def test_digits_and_the_queries_after_an_alarm_are_whole_numbers_or_none():
    settings = Sentinel(digits=np.int64(1), after_alarm=torch.tensor(0))
    assert (settings.digits, settings.after_alarm) == (1, 0)
    assert type(settings.digits) is type(settings.after_alarm) is int
    settings = Sentinel(digits=None, after_alarm=None)
    assert (settings.digits, settings.after_alarm) == (None, None)


@pytest.mark.parametrize("name", ["on_alarm", "on_spent"])
def test_a_refused_setting_lists_the_known_ones(name):
    known = {"on_alarm": ON_ALARM, "on_spent": ON_SPENT}[name]
    with pytest.raises(OptionError, match=f"no {name} 'whatever'; known: {', '.join(known)}"):
        Sentinel(**{name: "whatever"})


def test_settings_take_lists_and_numbers_of_numpy():
    settings = Sentinel(alpha=np.float64(0.25), delta=np.float32(0.5), scores=["knn", "energy"])
    assert settings == Sentinel(alpha=0.25, delta=0.5, scores=("knn", "energy"))
    assert type(settings.alpha) is type(settings.delta) is float


def test_alpha_is_shared_by_the_client_and_the_groups_whose_alarm_is_enforced():
    groups = {"tenant": Group(limits=Limits(), enforce_alarm=True), "everyone": Group(limits=Limits())}
    assert Sentinel(alpha=0.01).share == 0.01
    assert Sentinel(alpha=0.01, groups=groups).share == 0.005


def test_a_refusal_carries_the_reply():
    reply = Reply(torch.full((1, 2), 0.5), (Verdict.SPENT,), np.array([False]), np.array([True]), np.array([False]))
    error = RefusedError("nothing left", reply)
    assert error.reply is reply
    assert str(error) == "nothing left"
