"""The script that finds a radius: larger ones spend a class sooner, and its shares are those of a whole trial."""

from __future__ import annotations

import pytest

from benchmarks.training.radius import measure
from queen.attacks.base import Sizes
from queen.bench.spec import Utility
from queen.bench.trials.cell import run_trial
from queen.bench.trials.trial import Trial
from queen.cache import Cache
from tests.support.benchmarks import tiny_protectee

TRIAL = Trial(
    column="mine",
    defense="queen",
    query="knockoff",
    attack="direct",
    budget=600,
    options={"map_epochs": 20, "radius": 5.0, "threshold": 0.05},
    sizes=Sizes(mirror=False, ask_batch=64),
    utility=Utility(clients=1, queries=1),
)


@pytest.mark.slow
def test_shares_and_losses_are_those_of_a_trial_with_that_radius(tmp_path):
    narrow, wide = (measure(TRIAL, tiny_protectee(), radius) for radius in (1e-4, 0.03))
    assert narrow["thief"]["B"] == narrow["points_lost"] == 0
    assert wide["thief"]["B"] > 0.05
    assert wide["thief"]["C"] < narrow["thief"]["C"]
    assert wide["thief"]["A"] == narrow["thief"]["A"]
    options = {**TRIAL.options, "absolute_radius": 0.03}
    result = run_trial(Trial(**{**vars(TRIAL), "options": options}), tiny_protectee(), Cache(tmp_path))
    assert {letter: result["verdicts"].get(letter, 0) for letter in "ABCD"} == wide["thief"]
    lost = result["protectee"]["accuracy"] - result["utility"]["one_client"]["accuracy"]
    assert wide["points_lost"] == pytest.approx(100 * lost)
