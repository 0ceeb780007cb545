from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import beta

from queen.bench.studies import detectors
from queen.bench.studies.base import StudyContext
from queen.bench.studies.detectors import STUDY, Detectors, measure, to_markdown, upper_limit
from queen.errors import CalibrationError, OptionError


@pytest.mark.parametrize(("hits", "trials"), [(0, 100), (1, 100), (7, 20), (19, 20)])
def test_the_limit_is_that_of_clopper_and_pearson(hits, trials):
    assert upper_limit(hits, trials) == pytest.approx(beta.ppf(0.95, hits + 1, trials - hits))
    assert upper_limit(trials, trials) == 1


def test_the_limit_covers_no_hits_as_the_rule_says():
    """No hit in n trials has probability 1 - level at the limit."""
    assert (1 - upper_limit(0, 50)) ** 50 == pytest.approx(0.05)


def test_more_images_than_there_are_are_refused(context):
    protectee = replace(context.protectee, test=tuple(part[:40] for part in context.protectee.test))
    with pytest.raises(OptionError, match="life must be at most the number of test images, 40, got 41"):
        measure(replace(context, protectee=protectee), Detectors(defenses=("seat",), life=41))


def test_a_life_that_the_calibration_images_are_too_few_for_is_refused_before_any_work(context):
    with pytest.raises(CalibrationError, match="got 101 with 200 of them: lower life to 100, or give at least 202"):
        STUDY.needs(context.spec, Detectors(defenses=("seat",), life=101))


def test_columns_whose_alarms_are_not_refusals_are_refused(context):
    quiet = {**context.spec.defenses["quick-sentinel"], "on_alarm": "decoy"}
    spec = replace(context.spec, defenses={**context.spec.defenses, "decoys": quiet})
    assert STUDY.needs(spec, Detectors(defenses=("quick-sentinel",))).defenses == ("quick-sentinel",)
    with pytest.raises(OptionError, match="sees alarms by refusals, got 'decoys' with on_alarm decoy: leave it out"):
        STUDY.needs(spec, Detectors(defenses=("quick-sentinel", "decoys")))


@pytest.mark.parametrize(("life", "expected"), [(None, 50), (30, 30)])
def test_all_columns_are_compared_over_the_same_life(context, monkeypatch, life, expected):
    """Thresholds are chosen for it, and benign clients send as many images; the sentinel's rate has no end."""
    lives, sent = [], []

    def make_trial(_, name, **fields):
        lives.append((name, fields["options"].get("life")))
        return SimpleNamespace(start_endpoint=lambda _: SimpleNamespace(client=lambda _: lambda x: sent.append(len(x))))

    monkeypatch.setattr(detectors, "_attack", lambda *_: {"alarm": None, "honest": 0})
    monkeypatch.setattr(StudyContext, "make_trial", make_trial)
    monkeypatch.setattr(StudyContext, "generator", lambda *_: torch.Generator())
    monkeypatch.setattr(StudyContext, "cached", lambda *arguments: arguments[-1]())
    parameters = Detectors(defenses=("seat", "quick-sentinel"), clients=2, life=life, seeds=(0,))
    result = measure(context, parameters)
    assert set(lives) == {("seat", expected), ("quick-sentinel", None)}
    assert sent == [expected] * 4
    assert result["life"] == expected
    shown = to_markdown({**result, "config": {"parameters": vars(parameters)}})
    assert f"over a life of {expected} queries" in shown


def test_unknown_queries_are_refused(context):
    with pytest.raises(OptionError, match="did you mean 'knockoff'"):
        STUDY.needs(context.spec, Detectors(queries=("knockof",)))


@pytest.mark.slow
def test_alarms_and_honest_answers_are_counted(context):
    parameters = Detectors(
        defenses=("mmd", "quick-sentinel"), queries=("knockoff",), alpha=0.05, clients=4, life=100, seeds=(0, 1)
    )
    result = measure(context, parameters)
    for row in result["rows"].values():
        assert 0 <= row["accused"] <= 4
        assert row["upper"] == upper_limit(row["accused"], 4)
        for run in row["attacks"]["knockoff"]:
            alarm = run["alarm"] or result["budget"] + 1
            assert run["honest"] <= alarm - 1  # a spent budget is refused too
    shown = to_markdown({**result, "config": {"parameters": vars(parameters)}})
    assert "| mmd |" in shown
