from __future__ import annotations

import pytest
import torch

from queen.attacks.base import CountedOracle
from queen.bench.studies.costs import STUDY, Costs, measure
from queen.bench.studies.costs_view import FIGURES, to_markdown
from queen.bench.studies.needs import check_base
from queen.bench.trials.utility import measure_answers
from queen.errors import OptionError

COLUMNS = ("none", "harsh", "quick-sentinel")


@pytest.fixture(scope="module")
def measured(context):
    parameters = Costs(defenses=COLUMNS, lengths=(10, 100, 300, 1000), orders=2, budgets=(20, 100, 200, 500))
    result = measure(context, parameters) | {"protectee": context.protectee.facts()}
    return result | {"config": {"parameters": vars(parameters)}}


@pytest.mark.slow
@pytest.mark.parametrize("defense", COLUMNS)
@pytest.mark.parametrize("place", range(3))
def test_a_point_at_n_queries_is_that_of_a_client_who_sends_n(context, measured, defense, place):
    """Figures of the first queries of a long stream, against a client of its own who stops there."""
    point = measured["benign"][defense][place]
    x, y = context.protectee.test
    for order in range(2):
        trial = context.make_trial(defense, seed=order)
        rows = torch.randperm(len(x), generator=trial.generator("benign order"))[: point["queries"]]
        oracle = CountedOracle(trial.start_endpoint(context.protectee).client, len(x), trial.sizes.ask_batch)
        clean = context.protectee.victim.clean(x[rows])
        alone = measure_answers(*oracle.ask(x[rows], "one client"), clean, y[rows])
        assert {name: point[name][order] for name in FIGURES} == pytest.approx({n: alone[n] for n in FIGURES}, abs=1e-6)


@pytest.mark.slow
def test_curves_end_where_images_and_budget_do(measured):
    for defense in COLUMNS:
        assert [point["queries"] for point in measured["benign"][defense]] == [10, 100, 300]
        for pool in ("foreign", "own_kind"):
            assert [point["queries"] for point in measured["thieves"][defense][pool]] == [20, 100, 200]


@pytest.mark.slow
def test_without_a_defense_a_benign_client_gets_the_victims_answers_and_a_thief_one_per_query(context, measured):
    last = measured["benign"]["none"][-1]
    assert last["accuracy"] == [pytest.approx(context.protectee.facts()["accuracy"])] * 2
    assert max(last["l1"]) < 1e-6
    assert last["refused"] == [0, 0]
    for curve in measured["thieves"]["none"].values():
        assert [point["honest"] for point in curve] == [[20], [100], [200]]


@pytest.mark.slow
def test_more_queries_never_mean_fewer_honest_answers(measured):
    for pools in measured["thieves"].values():
        for curve in pools.values():
            honest = [point["honest"][0] for point in curve]
            assert honest == sorted(honest)
            assert all(answers <= point["queries"] for answers, point in zip(honest, curve, strict=True))


@pytest.mark.slow
def test_a_harsh_defense_costs_the_benign_client_more_the_longer_it_stays(measured):
    l1 = [max(point["l1"]) for point in measured["benign"]["harsh"]]
    assert l1[-1] > l1[0]


def result(thieves) -> dict[str, object]:
    """A result of one column and the given points of its thieves."""
    parameters = {"defenses": ["none"], "pools": ["foreign"], "orders": 2, "seeds": [0, 1]}
    figures = {"accuracy": [0.5, 0.75], "l1": [0.25, 0.5], "calibration_error": [0.1, 0.1], "refused": [0.0, 0.25]}
    return {
        "config": {"parameters": parameters},
        "protectee": {"accuracy": 0.9, "chance": 0.1},
        "benign": {"none": [{"queries": 10, **figures}]},
        "thieves": {"none": {"foreign": thieves}},
    }


def test_the_table_shows_medians_honest_answers_and_what_is_flagged():
    bad = "the thief collapsed to one class"
    shown = to_markdown(
        result(
            [
                {"queries": 10, "accuracy": [0.5, 0.5], "honest": [7, 9], "flags": [[], [bad]], "explained": [{}, {}]},
                {
                    "queries": 20,
                    "accuracy": [None, None],
                    "honest": [0, 0],
                    "flags": [[], []],
                    "explained": [{"a": "b"}, {}],
                },
            ]
        )
    )
    assert "| none | 10 | 62.5 | 0.375 | 10.0 | 12.5 | 50.0 ± 0.0* (8) |" in shown
    assert "| none | 20 | - | - | - | - | - (0) |" in shown
    assert f"- \\* {bad}: 1 of 4 runs." in shown
    assert "The flags of 1 runs are explained" in shown


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"orders": 0}, "orders must be a whole number of at least 1, got 0"),
        ({"lengths": (0, 10)}, "lengths must be a whole number of at least 1, got 0"),
        ({"lengths": (10, 10)}, "lengths must rise from one number to the next, got 10, 10"),
        ({"budgets": (300, 100)}, "budgets must rise from one number to the next, got 300, 100"),
        ({"budgets": (201,)}, "at most the number of queries in the base's budget, 200, got 201: lower it"),
        ({"lengths": (301,)}, "at most the number of test images, 300, got 301: lower it"),
        ({"pools": ("own",)}, "no pool 'own'"),
    ],
)
def test_wrong_parameters_are_named_before_any_work(context, wrong, message):
    with pytest.raises(OptionError, match=message):
        check_base(context.spec, STUDY.needs(context.spec, Costs(**wrong)))
