from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

from queen.bench.studies import STUDIES
from queen.bench.studies.limits import LETTERS, Radius, Threshold, measure_radius, measure_threshold
from queen.bench.studies.shadow_models import ShadowModels
from queen.bench.studies.shadow_models import measure as measure_shadows
from queen.defenses import DEFENSES

SMALL = {"defenses": ("queen",), "attacks": ("direct",), "pools": ("own_kind",)}


def letters_by_hand(context, options: dict[str, float]) -> Counter[str]:
    """Verdicts of the attacker's queries, asked one at a time."""
    trial = context.make_trial("queen", seed=0, options=options)
    protectee = context.protectee_for("own_kind")
    service = DEFENSES["queen"].start(protectee.victim, trial.generator("defense"), **trial.options)
    rows = torch.randperm(len(protectee.pool), generator=trial.generator("query"))[: context.spec.budget]
    oracle = service.client("by hand")
    for row in rows:
        oracle(protectee.pool[row : row + 1])
    return Counter(service.verdicts)


@pytest.mark.slow
def test_the_recorded_ratio_falls_as_the_radius_grows_and_is_that_counted_by_hand(context):
    radii = (0.02, 0.3, 0.9)
    rows = measure_radius(context, Radius(radii=radii, threshold=0.2, **SMALL))["rows"]
    assert [row["value"] for row in rows] == list(radii)
    recorded = [row["verdicts"]["C"] for row in rows]
    assert recorded[0] > recorded[1] > recorded[2] > 0
    for row in rows:
        counted = letters_by_hand(context, {"radius": row["value"], "threshold": 0.2})
        assert {letter: row["verdicts"][letter] for letter in LETTERS} == pytest.approx(
            {letter: counted[letter] / row["queries"] for letter in LETTERS}
        )
        assert sum(row["verdicts"].values()) == pytest.approx(1)


@pytest.mark.slow
def test_a_larger_threshold_records_more_and_spends_less_whatever_the_policy(context):
    parameters = Threshold(thresholds=(0.001, 0.1, 5.0), radius=0.3, **{**SMALL, "defenses": ("queen", "queen-strict")})
    rows = measure_threshold(context, parameters)["rows"]
    plain, strict = ([row for row in rows if row["defense"] == name] for name in parameters.defenses)
    assert [row["verdicts"] for row in plain] == [row["verdicts"] for row in strict]
    recorded, spent = ([row["verdicts"][letter] for row in plain] for letter in "CB")
    assert recorded[0] < recorded[1] < recorded[2]
    assert spent[0] > spent[1] > spent[2] == 0
    assert plain[2]["label_kept"] == strict[2]["label_kept"] == 1
    assert strict[0]["label_kept"] < plain[0]["label_kept"] < 1
    assert strict[0]["benign"]["one_client"] < strict[2]["benign"]["one_client"]


def test_what_was_measured_for_a_value_is_not_measured_again(context, monkeypatch):
    parameters = Radius(radii=(0.02,), threshold=0.2, **SMALL)
    first = measure_radius(context, parameters)
    monkeypatch.setattr("queen.bench.studies.base.run_trial", None)
    assert measure_radius(context, parameters) == first
    with pytest.raises(TypeError):
        measure_radius(context, Radius(radii=(0.03,), threshold=0.2, **SMALL))


@pytest.mark.slow
def test_absolute_radii_are_those_of_the_map(context):
    [row] = measure_radius(context, Radius(radii=(0.4,), threshold=0.2, absolute_radius=True, **SMALL))["rows"]
    counted = letters_by_hand(context, {"absolute_radius": 0.4, "threshold": 0.2})
    assert row["verdicts"] == pytest.approx({letter: counted[letter] / row["queries"] for letter in LETTERS})
    assert letters_by_hand(context, {"radius": 0.4, "threshold": 0.2}) != counted
    [fixed] = measure_threshold(context, Threshold(thresholds=(0.2,), radius=0.4, absolute_radius=True, **SMALL))[
        "rows"
    ]
    assert fixed["verdicts"] == row["verdicts"]


@pytest.mark.slow
def test_heads_and_networks_as_shadow_models_stand_side_by_side(context):
    parameters = ShadowModels(counts=(1, 2), kinds=("head", "small_cnn"), seeds=(0,))
    measured = measure_shadows(context, parameters)
    assert [(row["kind"], row["count"]) for row in measured["rows"]] == list(
        product(parameters.kinds, parameters.counts)
    )
    heads, networks = measured["rows"][:2], measured["rows"][2:]
    assert {row["reversed"] for row in heads} == {row["reversed"] for row in networks}  # the map is the same
    assert [row["thief"] for row in heads] != [row["thief"] for row in networks]
    result = {**measured, "protectee": {"name": "cifar100"}, "config": {"parameters": vars(parameters)}}
    text = STUDIES["shadow_models"].to_markdown(result)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:6]] == [
        *("1 heads", "2 heads", "1 small_cnn", "2 small_cnn")
    ]
    assert "paper, cifar10, ddae_plus" in text  # the paper has no direct thief
    assert STUDIES["shadow_models"].draw(result).startswith(b"\x89PNG")


@pytest.mark.slow
def test_shadow_models_are_tried_where_answers_are_reversed(context):
    result = measure_shadows(context, ShadowModels(counts=(1, 3), seeds=(0,)))
    assert [row["count"] for row in result["rows"]] == [1, 3]
    clean = result["undefended"]["direct"][0]
    assert clean > 0.3  # else there is nothing to lose
    for row in result["rows"]:
        assert row["reversed"] > 0.2
        assert 1 - row["label_kept"] <= row["reversed"]
        assert len(row["thief"]["direct"]) == 1
        assert row["thief"]["direct"][0] < clean
    assert result["rows"][0]["reversed"] == result["rows"][1]["reversed"]  # the map is the same
