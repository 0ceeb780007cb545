"""The study `costs`: what a defense costs one benign client and what a thief gains, over the number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from queen.attacks.base import CountedOracle
from queen.bench.spec import Spec
from queen.bench.studies.base import FEW_CLIENTS, Study, StudyContext
from queen.bench.studies.costs_view import FIGURES, draw, to_markdown
from queen.bench.studies.needs import StudyNeeds
from queen.bench.trials.utility import measure_answers
from queen.defenses.detectors.base import check_count
from queen.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Which columns, and after how many queries one looks.

    A benign client sends random test images; it is looked at after each of the `lengths`, as far as the test images go,
    in so many random `orders`. A thief that believes all answers stops at each of the `budgets`, as far as the base's
    budget and its images go, which come from each of the `pools`.
    """

    defenses: tuple[str, ...] = ("none", "queen", "queen-strict", "queen-sentinel", "modelguard_w")
    lengths: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000, 10000)
    orders: int = 5
    budgets: tuple[int, ...] = (100, 300, 1000, 3000, 10000, 30000)
    pools: tuple[str, ...] = ("foreign", "own_kind")
    seeds: tuple[int, ...] = (0,)


def measure(context: StudyContext, parameters: Costs) -> dict[str, Any]:
    """Per column the curve of benign clients, and one of thieves for every pool."""
    lengths = _reachable("lengths", parameters.lengths, "test images", len(context.protectee.test[0]))
    benign, thieves = {}, {}
    for defense in context.each("costs", parameters.defenses):
        benign[defense] = _benign_curve(context, parameters, defense, lengths)
        thieves[defense] = {pool: _thief_curve(context, parameters, defense, pool) for pool in parameters.pools}
    return {"benign": benign, "thieves": thieves}


def _reachable(name: str, wanted: Sequence[int], what: str, most: int) -> list[int]:
    """The numbers of queries that so many images are enough for; an error if there is none."""
    reached = [number for number in wanted if number <= most]
    if not reached:
        raise OptionError(f"{name} must begin with at most the number of {what}, {most}, got {min(wanted)}: lower it")
    return reached


def _benign_curve(
    context: StudyContext, parameters: Costs, defense: str, lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """One point per length: every figure as a list, with a number for each order."""
    orders = [
        context.cached(
            "benign-cost", [defense, lengths, order], partial(_measure_client, context, defense, lengths, order)
        )
        for order in range(parameters.orders)
    ]
    return [
        {"queries": length, **{name: [points[place][name] for points in orders] for name in FIGURES}}
        for place, length in enumerate(lengths)
    ]


def _measure_client(context: StudyContext, defense: str, lengths: Sequence[int], order: int) -> list[dict[str, float]]:
    """What a client has got after each of the lengths: it asks once, and figures are those of its first queries."""
    trial, (x, y) = context.make_trial(defense, seed=order), context.protectee.test
    rows = torch.randperm(len(x), generator=trial.generator("benign order"))[: lengths[-1]].to(x.device)
    oracle = CountedOracle(trial.start_endpoint(context.protectee).client, len(rows), trial.sizes.ask_batch)
    answers, answered = oracle.ask(x[rows], "one client")
    clean, labels = context.protectee.victim.clean(x[rows]), y[rows]
    return [measure_answers(answers[:n], answered[:n], clean[:n], labels[:n]) for n in lengths]


def _thief_curve(context: StudyContext, parameters: Costs, defense: str, pool: str) -> list[dict[str, Any]]:
    """One point per budget: accuracies and honest answers with a number for each seed, and what is wrong with runs."""
    most = min(context.spec.budget, len(context.protectee_for(pool).pool))
    points = []
    for budget in _reachable("budgets", parameters.budgets, f"queries that a thief can send ({pool})", most):
        runs = [
            context.cached(
                "thief-gain", [defense, pool, budget, seed], partial(_steal, context, defense, pool, budget, seed)
            )
            for seed in parameters.seeds
        ]
        points.append({"queries": budget} | {name: [run[name] for run in runs] for name in runs[0]})
    return points


def _steal(context: StudyContext, defense: str, pool: str, budget: int, seed: int) -> dict[str, Any]:
    """The accuracy of a thief that stops after so many queries (None: nothing was answered), and what it had got.

    The same seed asks the same images in the same order, so that a larger budget only adds to a smaller one.
    """
    result = context.steal(context.make_trial(defense, seed=seed, budget=budget, utility=FEW_CLIENTS), pool)
    return {
        "accuracy": result["thief"]["accuracy"],
        "honest": round(result["verdicts"]["honest"] * result["queries"]["sent"]),
        "flags": [flag for flag in result["flags"] if flag not in result["explained"]],
        "explained": result["explained"],
    }


def _needs(spec: Spec, parameters: Costs) -> StudyNeeds:
    check_count("orders", parameters.orders)
    for name, numbers in (("lengths", parameters.lengths), ("budgets", parameters.budgets)):
        for number in numbers:
            check_count(name, number)
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise OptionError(f"{name} must rise from one number to the next, got {', '.join(map(str, numbers))}")
    _reachable("budgets", parameters.budgets, "queries in the base's budget", spec.budget)
    if isinstance(spec.protectee.test, int):
        _reachable("lengths", parameters.lengths, "test images", spec.protectee.test)
    return StudyNeeds(defenses=parameters.defenses, pools=parameters.pools)


STUDY = Study(Costs, measure, draw, to_markdown, _needs)
