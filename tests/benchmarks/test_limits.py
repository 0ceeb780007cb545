"""The program that measures what limits cost a benign client of one day."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import queen
from benchmarks.price import limits
from benchmarks.price.limits import CHOICES, measure, save
from queen.defenses.queen import load_or_fit
from queen.options import SENTINEL_LIMITS, Limits
from tests.support.benchmarks import tiny_protectee


@pytest.fixture(scope="module")
def bundle():
    recipe = {"map_epochs": 20, "map_batch": None, "shadow_models": 4, "shadow_kind": "head", "seed": 0}
    return load_or_fit(tiny_protectee().victim, **recipe)


def test_the_first_of_the_limits_are_the_default():
    assert next(iter(CHOICES.values())) == SENTINEL_LIMITS


def test_clients_of_all_classes_and_of_one_are_refused_by_what_the_limits_leave(bundle, monkeypatch):
    few = replace(SENTINEL_LIMITS, extra_answers="10/day")
    monkeypatch.setattr(limits, "CHOICES", {"default": SENTINEL_LIMITS, "few": few, "nothing": Limits(threshold=0)})
    x = tiny_protectee().test[0]
    usual, strict, spent = measure(bundle, x)
    assert usual["all_classes"]["refused"] == usual["one_class"]["refused"] == 0
    assert (usual["all_classes"]["queries"], usual["limits"]["extra_answers"]) == (200, "10000/day")
    for row in (strict, spent):
        for kind in ("all_classes", "one_class"):
            sent = row[kind]
            assert sent["refused"] == pytest.approx(sent["verdicts"]["refused"] / sent["queries"])
            assert sent["wrong_labels"] == 0
    left = strict["all_classes"]
    assert left["queries"] - left["verdicts"]["refused"] == 10 + left["verdicts"]["C"]
    assert strict["all_classes"]["refused"] > strict["one_class"]["refused"]
    assert spent["one_class"]["refused"] > 0.5


def test_the_saved_bundle_and_images_can_be_priced(bundle, tmp_path):
    protectee = tiny_protectee()
    save(bundle, protectee, tmp_path)
    with np.load(tmp_path / "train.npz") as train, np.load(tmp_path / "held_out.npz") as held_out:
        assert (len(train["x"]), len(held_out["x"]), len(held_out["y"])) == (900, 500, 500)
        assert np.array_equal(held_out["x"][400:], protectee.benign[0].numpy())
    loaded = queen.load(tmp_path / "bundle").bundle
    assert (loaded.policy, loaded.limits) == ("sentinel", SENTINEL_LIMITS)
