"""The study `detectors`: what a thief is answered before the alarm, where all accuse as few benign clients."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from scipy.special import betaincinv
from torch import Tensor

from queen.attacks import ATTACKS, QUERIES, find_queries
from queen.attacks.base import CountedOracle
from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import GREEN, RED
from queen.bench.spec import Spec
from queen.bench.studies.base import Result, Study, StudyContext
from queen.bench.studies.formatting import percent
from queen.bench.studies.needs import StudyNeeds, find_method
from queen.bench.trials.trial import Trial, make_knowledge
from queen.defenses import DEFENSES
from queen.defenses.base import Endpoint
from queen.defenses.detectors.base import FalseAlarms
from queen.errors import OptionError, RefusedError
from queen.plots import png
from queen.types import Oracle

LEVEL = 0.95  # of confidence limits
REFUSE = "refuse"


@dataclass(frozen=True, kw_only=True)
class Detectors:
    """Which columns face which query strategies, at which rate of false accusations.

    The rate is measured on `clients` benign clients, who send `life` random test images each. Thresholds are chosen
    for the same life; None is a quarter of the calibration images.
    """

    defenses: tuple[str, ...] = ("prada", "seat", "d_add", "mmd", "queen-sentinel")
    queries: tuple[str, ...] = ("knockoff", "jbda_tr")
    alpha: float = 0.01
    clients: int = 200
    life: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)


def measure(context: StudyContext, parameters: Detectors) -> dict[str, Any]:
    """One row per column: alarms and honest answers of every attack and seed, and benign clients accused."""
    life, available = _choose_life(context.spec, parameters), len(context.protectee.test[0])
    if life > available:
        raise OptionError(f"life must be at most the number of test images, {available}, got {life}: lower it")
    parameters = replace(parameters, life=life)
    rows = {}
    for name in context.each("detectors", parameters.defenses):
        rows[name] = context.cached("detectors", [name, vars(parameters)], partial(_row, context, parameters, name))
    return {"rows": rows, "budget": context.spec.budget, "life": life}


def _choose_life(spec: Spec, parameters: Detectors) -> int:
    """How many queries benign clients send, the same for all columns; refused where a detector would refuse it."""
    return FalseAlarms(alpha=parameters.alpha, life=parameters.life).choose_life(spec.protectee.calibration)


def _row(context: StudyContext, parameters: Detectors, name: str) -> dict[str, Any]:
    known = DEFENSES[find_method(context.spec, name)].options
    rate = {"alpha": parameters.alpha, "life": parameters.life}
    options = {option: value for option, value in rate.items() if option in known}  # the sentinel's rate has no end

    def trial(seed: int, query: str = "knockoff") -> Trial:
        return context.make_trial(name, seed=seed, query=query, options=options)

    attacks = {
        query: [_attack(context, trial(seed, query)) for seed in parameters.seeds] for query in parameters.queries
    }
    endpoint = trial(parameters.seeds[0]).start_endpoint(context.protectee)
    accused = _count_accused(context, parameters, endpoint)
    return {"attacks": attacks, "accused": accused, "upper": upper_limit(accused, parameters.clients)}


class AccusedError(Exception):
    """Ends an attack at the alarm: what an attacker does afterwards is not the matter of this study."""


def _attack(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """The query at which the thief is accused (None: never), and how many honest answers it had by then."""
    endpoint = trial.start_endpoint(context.protectee)
    sent, alarm = 0, None

    def open_account(name: str) -> Oracle:
        oracle = endpoint.client(name)

        def ask(x: Tensor) -> Tensor:
            nonlocal sent, alarm
            try:
                return oracle(x)
            except RefusedError as refusal:
                if refusal.reply.alarmed.any():
                    alarm = sent + int(refusal.reply.alarmed.argmax()) + 1
                    raise AccusedError from refusal
                raise
            finally:
                sent += len(x)

        return ask

    oracle = CountedOracle(open_account, trial.budget, trial.sizes.ask_batch)
    knowledge = make_knowledge(trial, context.protectee, endpoint)
    with suppress(AccusedError):
        QUERIES[trial.query](oracle, ATTACKS[trial.attack], knowledge, trial.budget, trial.generator("query"))
    return {"alarm": alarm, "honest": endpoint.verdicts["honest"]}


def _count_accused(context: StudyContext, parameters: Detectors, endpoint: Endpoint) -> int:
    """How many benign clients are accused."""
    x = context.protectee.test[0]
    generator = context.generator(parameters.seeds[0], "benign clients")
    accused = 0
    for client in range(parameters.clients):
        rows = torch.randperm(len(x), generator=generator)[: parameters.life].to(x.device)
        try:
            endpoint.client(f"benign {client}")(x[rows])
        except RefusedError as refusal:  # or a budget is spent, which is no accusation
            accused += bool(refusal.reply.alarmed.any())
    return accused


def upper_limit(hits: int, trials: int, level: float = LEVEL) -> float:
    """The upper confidence limit of a share of which `hits` of `trials` were drawn (Clopper-Pearson)."""
    return 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, level))


def draw(result: Result) -> bytes:
    """Honest answers before the alarm, one dot per seed and one panel per query strategy."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows, queries = result["rows"], result["config"]["parameters"]["queries"]
    size = (1.5 + 3.6 * len(queries), 1.2 + 0.32 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(queries), sharey=True, squeeze=False)[0]
    for axis, query in zip(panels, queries, strict=True):
        for place, (name, row) in enumerate(rows.items()):
            honest = [run["honest"] for run in row["attacks"][query]]
            colour = GREEN if name.startswith("queen") else RED
            axis.scatter(honest, [place] * len(honest), s=34, color=colour, alpha=0.6)
            middle = statistics.median(honest)
            axis.annotate(f"{middle:g}", (middle, place), (0, 6), textcoords="offset points", ha="center", fontsize=7)
        axis.set_title(query, fontsize=10)
        axis.set_xlabel(f"honest answers of {result['budget']}", fontsize=9)
        axis.set_xlim(0, 1.05 * result["budget"])
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(rows)), list(rows), fontsize=8)
    panels[0].set_ylim(len(rows) - 0.5, -0.7)
    return png(figure)


def to_markdown(result: Result) -> str:
    """The table of answers leaked before the alarm."""
    parameters, rows = result["config"]["parameters"], result["rows"]
    queries = parameters["queries"]
    header = ["detector", *(f"honest answers before the alarm, {query}" for query in queries)]
    table = markdown_table(
        [*header, f"benign accused, of {parameters['clients']}", f"upper {LEVEL:.0%} limit (%)"],
        [
            [
                name,
                *(_leaked(row["attacks"][query]) for query in queries),
                str(row["accused"]),
                percent(row["upper"]),
            ]
            for name, row in rows.items()
        ],
    )
    return (
        f"{table}\nMedian (lowest to highest) over seeds {parameters['seeds']}, of {result['budget']} queries; all at "
        f"alpha {parameters['alpha']:g} over a life of {result['life']} queries. Benign clients send as many random "
        "test images each; the limit is Clopper and Pearson's.\n"
    )


def _leaked(runs: Sequence[Result]) -> str:
    honest = [run["honest"] for run in runs]
    caught = sum(run["alarm"] is not None for run in runs)
    text = f"{statistics.median(honest):g} ({min(honest)} to {max(honest)})"
    return text if caught == len(runs) else f"{text}, {caught} of {len(runs)} caught"


def _needs(spec: Spec, parameters: Detectors) -> StudyNeeds:
    for query in parameters.queries:
        find_queries(query)
    _choose_life(spec, parameters)
    for name in parameters.defenses:
        options = {**DEFENSES[find_method(spec, name)].options, **spec.defenses.get(name, {})}
        if "alpha" not in options:
            raise OptionError(f"defense '{name}' accuses nobody: this study compares those with an option 'alpha'")
        answer = options.get("on_alarm", REFUSE)
        if answer != REFUSE:
            raise OptionError(
                f"expected defenses that refuse the accused, since this study sees alarms by refusals, got '{name}' "
                f"with on_alarm {answer}: leave it out, or give it on_alarm {REFUSE}"
            )
    return StudyNeeds(defenses=parameters.defenses)


STUDY = Study(Detectors, measure, draw, to_markdown, _needs)
