"""Whether a thief trained on defended answers can be told from one trained on clean answers, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import ks_2samp
from torch import Tensor, nn

from queen.attacks import ATTACKS
from queen.attacks.base import Transcript
from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import GREEN, GREY, RED
from queen.bench.spec import Spec
from queen.bench.studies.base import Result, Study, StudyContext, limit_budget
from queen.bench.studies.formatting import pool_name
from queen.bench.studies.needs import StudyNeeds
from queen.bench.trials.asking import interrogate
from queen.bench.trials.trial import Trial, make_knowledge
from queen.errors import OptionError
from queen.plots import png
from queen.training import predict

CLEAN, CONTROL = "none", "none, another seed"
LEAST = 1e-12  # smaller p-values are drawn here
CHECKPOINTS = 20


@dataclass(frozen=True, kw_only=True)
class ForgetQuality:
    """Which defenses; `control` adds a thief on clean answers with another seed, to see what chance alone does."""

    defenses: tuple[str, ...] = (
        "reverse_sigmoid",
        "mad",
        "label_only",
        "modelguard_w",
        "queen",
        "queen-strict",
        "queen-sentinel",
    )
    attack: str = "direct"
    pool: str = "foreign"
    control: bool = True
    significant: float = 0.05
    seed: int = 0


def measure(context: StudyContext, parameters: ForgetQuality) -> dict[str, Any]:
    """Per thief and checkpoint: epoch, test accuracy, and the p-value against the clean thief at the same point."""
    clean = _history(context, parameters, CLEAN, parameters.seed)
    names = [
        CLEAN,
        *([CONTROL] if parameters.control else []),
        *(name for name in parameters.defenses if name != CLEAN),
    ]
    rows = {}
    for name in context.each("forget quality", names):
        own = _history(context, parameters, CLEAN if name == CONTROL else name, parameters.seed + (name == CONTROL))
        rows[name] = [
            {"epoch": point["epoch"], "accuracy": point["accuracy"], "p": p_value(point["labels"], other["labels"])}
            for point, other in zip(own, _at_same_progress(own, clean), strict=True)
        ]
    return {"rows": rows, "queries": sum(clean[0]["labels"])}


def p_value(counts: Sequence[int], others: Sequence[int]) -> float:
    """The two-sample Kolmogorov-Smirnov p-value of predicted labels, given how often each class was predicted (K,)."""
    samples = [np.repeat(np.arange(len(own)), own) for own in (counts, others)]
    return float(ks_2samp(*samples, method="asymp").pvalue)


def _at_same_progress(own: Sequence[Result], clean: Sequence[Result]) -> list[Result]:
    """For each checkpoint the clean thief's at the same share of its training: refused answers make epochs shorter."""
    ends = own[-1]["epoch"], clean[-1]["epoch"]
    return [min(clean, key=lambda o: abs(o["epoch"] / ends[1] - point["epoch"] / ends[0])) for point in own]


def _history(context: StudyContext, parameters: ForgetQuality, defense: str, seed: int) -> list[dict[str, Any]]:
    """The checkpoints of one thief."""
    trial = context.make_trial(defense, seed=seed, attack=parameters.attack)
    asking = replace(trial, seed=parameters.seed)  # a control asks the same images, only its training has another seed
    # Whatever the defense and the attack: p-values of fewer images would be larger.
    queries = _ask(context, replace(asking, defense=CLEAN, options={}, attack="direct"), parameters.pool).x
    depends_on = [defense, dict(trial.options), parameters.attack, parameters.pool, seed, parameters.seed]

    def train() -> list[dict[str, Any]]:
        return _train_with_checkpoints(context, trial, _ask(context, asking, parameters.pool), queries, parameters.pool)

    checkpoints: list[dict[str, Any]] = context.cached("forget", depends_on, train)
    return checkpoints


def _ask(context: StudyContext, trial: Trial, pool: str) -> Transcript:
    """The queries of a trial and what its attacker believes of the answers.

    All attacks send as many queries, also those that ask for several views of an image, or count them as one.
    """
    protectee = context.protectee_for(pool)
    trial = replace(trial, budget=trial.budget // ATTACKS[trial.attack].overspend(trial.sizes))
    attacked = interrogate(limit_budget(trial, protectee), protectee)
    return ATTACKS[trial.attack].believe(attacked.transcript, attacked.knowledge, trial.generator("believe"))


def _train_with_checkpoints(
    context: StudyContext, trial: Trial, believed: Transcript, queries: Tensor, pool: str
) -> list[dict[str, Any]]:
    """Train a thief; now and then note its accuracy and how often it predicts each class for the queries."""
    if len(believed) == 0:
        raise OptionError(f"'{trial.column}' answered nothing, so there is no thief to compare: leave it out")
    protectee = context.protectee_for(pool)
    x, y = protectee.test
    epochs, _ = protectee.thief_schedule.plan(len(believed))
    stride = max(1, epochs // CHECKPOINTS)
    checkpoints: list[dict[str, Any]] = []
    epoch = 0

    def after_epoch(thief: nn.Module) -> None:
        nonlocal epoch
        epoch += 1
        if epoch % stride == 0 or epoch == epochs:
            accuracy = (predict(thief, x) == y).double().mean().item()
            labels = predict(thief, queries).bincount(minlength=protectee.classes).tolist()
            checkpoints.append({"epoch": epoch, "accuracy": accuracy, "labels": labels})

    endpoint = trial.start_endpoint(protectee)
    knowledge = replace(make_knowledge(trial, protectee, endpoint), on_epoch=after_epoch)
    ATTACKS[trial.attack].learn(believed, knowledge, trial.generator("thief"))
    return checkpoints


def draw(result: Result) -> bytes:
    """Accuracy against p-value as in the paper, one panel per thief; larger dots are later, grey ones the control's."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = result["rows"]
    shown = [name for name in rows if name not in (CLEAN, CONTROL)]
    columns = min(4, max(1, len(shown)))
    lines = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(1 + 2.8 * columns, 0.9 + 2.7 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis, name in zip(grid, shown, strict=False):
        if CONTROL in rows:
            _scatter(axis, rows[CONTROL], GREY)
        _scatter(axis, rows[name], GREEN if name.startswith("queen") else RED)
        axis.axhline(result["config"]["parameters"]["significant"], color="#333333", linestyle=":", linewidth=1)
        axis.set_yscale("log")
        axis.set_ylim(LEAST / 5, 5)
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in grid[max(0, len(shown) - columns) :]:
        axis.tick_params(labelbottom=True)
    for axis in grid[len(shown) :]:
        axis.set_visible(False)
    figure.supxlabel(f"accuracy of the thief (%); grey: {CONTROL}; larger dots are later epochs", fontsize=10)
    figure.supylabel(f"p-value against the clean thief (at least {LEAST:g})", fontsize=10)
    return png(figure)


def _scatter(axis: Any, checkpoints: Sequence[Result], colour: str) -> None:
    x, y = [100 * point["accuracy"] for point in checkpoints], [max(LEAST, point["p"]) for point in checkpoints]
    sizes = [6 + 50 * point["epoch"] / checkpoints[-1]["epoch"] for point in checkpoints]
    axis.scatter(x, y, s=sizes, color=colour, alpha=0.65, linewidths=0)


def to_markdown(result: Result) -> str:
    """The last checkpoint of every thief, and how often the test told it from the clean one."""
    parameters = result["config"]["parameters"]
    header = ["thief trained on answers of", "accuracy", "p, last epoch", "median log10 p", "looks with p below"]
    header[-1] += f" {parameters['significant']:g}"
    lines = []
    for name, points in result["rows"].items():
        last, late = points[-1], points[len(points) // 2 :]
        below, below_late = (sum(point["p"] < parameters["significant"] for point in part) for part in (points, late))
        middle = float(np.median([math.log10(max(point["p"], 1e-300)) for point in points]))
        counts = f"{below} of {len(points)} (second half: {below_late} of {len(late)})"
        lines.append([name, f"{last['accuracy']:.1%}", f"{last['p']:.2g}", f"{middle:.1f}", counts])
    return markdown_table(header, lines) + (
        f"\n{result['queries']} query images ({pool_name(parameters['pool'])}), {parameters['attack']} thieves, "
        f"seed {parameters['seed']}.\n"
    )


def _needs(_: Spec, parameters: ForgetQuality) -> StudyNeeds:
    defenses = (CLEAN, *parameters.defenses)
    return StudyNeeds(defenses=defenses, attacks=(parameters.attack,), pools=(parameters.pool,))


STUDY = Study(ForgetQuality, measure, draw, to_markdown, _needs)
