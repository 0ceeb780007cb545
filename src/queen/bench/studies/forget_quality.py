"""Whether a thief trained on defended answers can be told from one trained on clean answers, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp
from torch import Tensor, nn

from queen.attacks import ATTACKS, QUERIES
from queen.attacks.base import CountedOracle, Transcript
from queen.bench.markdown import markdown_table
from queen.bench.plots import GREEN, GREY, RED, png
from queen.bench.studies.base import Lab, Result, Study
from queen.bench.studies.words import pool_name
from queen.bench.trial import Trial, make_knowledge
from queen.defenses import DEFENSES
from queen.errors import OptionError
from queen.training import predict

CLEAN, CONTROL = "none", "none, another seed"
LEAST = 1e-12  # smaller p-values are drawn here
LOOKS = 20


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


def measure(lab: Lab, asked: ForgetQuality) -> dict[str, Any]:
    """Per defense and look: epoch, test accuracy, and the p-value against the clean thief of the same epoch."""
    clean = _history(lab, asked, CLEAN, asked.seed)
    names = [CLEAN, *([CONTROL] if asked.control else []), *(name for name in asked.defenses if name != CLEAN)]
    rows = {}
    for name in lab.each("forget quality", names):
        own = _history(lab, asked, CLEAN if name == CONTROL else name, asked.seed + (name == CONTROL))
        rows[name] = [
            {"epoch": look["epoch"], "accuracy": look["accuracy"], "p": p_value(look["labels"], other["labels"])}
            for look, other in zip(own, _nearest_epochs(own, clean), strict=True)
        ]
    return {"rows": rows, "queries": sum(clean[0]["labels"])}


def p_value(counts: Sequence[int], others: Sequence[int]) -> float:
    """The two-sample Kolmogorov-Smirnov p-value of predicted labels, given how often each class was predicted (K,)."""
    samples = [np.repeat(np.arange(len(found)), found) for found in (counts, others)]
    return float(ks_2samp(*samples, method="asymp").pvalue)


def _nearest_epochs(own: Sequence[Result], clean: Sequence[Result]) -> list[Result]:
    """For each look the clean thief's at the same share of its training: refused answers make epochs shorter."""
    ends = own[-1]["epoch"], clean[-1]["epoch"]
    return [min(clean, key=lambda o: abs(o["epoch"] / ends[1] - look["epoch"] / ends[0])) for look in own]


def _history(lab: Lab, asked: ForgetQuality, defense: str, seed: int) -> list[dict[str, Any]]:
    run = lab.plan(defense, seed=seed, attack=asked.attack)
    queries = _queries(lab, replace(run, seed=asked.seed), asked.pool)
    what = [defense, dict(run.options), asked.attack, asked.pool, seed, asked.seed]
    found: list[dict[str, Any]] = lab.keep("forget", what, lambda: _watch(lab, run, queries, asked))
    return found


def _queries(lab: Lab, run: Trial, pool: str) -> Tensor:
    """The images that are asked, whatever the defense."""
    return _ask(lab, replace(run, defense=CLEAN, options={}), pool).x


def _ask(lab: Lab, run: Trial, pool: str) -> Transcript:
    protectee, attack = lab.asking(pool), ATTACKS[run.attack]
    defense = DEFENSES[run.defense]
    service = defense.start(protectee.victim, run.generator("defense"), **run.options)
    budget = min(run.budget, len(protectee.pool)) * attack.overspend(run.sizes)
    desk = CountedOracle(service.client, budget, run.sizes.ask_batch)
    knowledge = make_knowledge(run, protectee, service)
    found = QUERIES[run.query](desk, attack, knowledge, budget, run.generator("query"))
    return attack.believe(found, knowledge, run.generator("believe"))


def _watch(lab: Lab, run: Trial, queries: Tensor, asked: ForgetQuality) -> list[dict[str, Any]]:
    """Train a thief; a few times on the way, its accuracy and how often it predicts each class for the queries.

    The control asks the same images as the others, and only its training has another seed.
    """
    believed = _ask(lab, replace(run, seed=asked.seed), asked.pool)
    if len(believed) == 0:
        raise OptionError(f"'{run.column}' answered nothing, so there is no thief to compare: leave it out")
    protectee = lab.asking(asked.pool)
    x, y = protectee.test
    total, _ = protectee.schedule.plan(len(believed))
    stride = max(1, total // LOOKS)
    found: list[dict[str, Any]] = []
    seen = 0

    def look(thief: nn.Module) -> None:
        nonlocal seen
        seen += 1
        if seen % stride == 0 or seen == total:
            right = (predict(thief, x) == y).double().mean().item()
            labels = predict(thief, queries).bincount(minlength=protectee.classes).tolist()
            found.append({"epoch": seen, "accuracy": right, "labels": labels})

    defense = DEFENSES[run.defense]
    service = defense.start(protectee.victim, torch.Generator().manual_seed(0), **run.options)
    knowledge = replace(make_knowledge(run, protectee, service), on_epoch=look)
    ATTACKS[run.attack].learn(believed, knowledge, run.generator("thief"))
    return found


def draw(result: Result) -> bytes:
    """Accuracy against p-value as in the paper, a panel a thief; larger dots are later, grey ones are the control's."""
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


def _scatter(axis: Any, looks: Sequence[Result], colour: str) -> None:
    x, y = [100 * look["accuracy"] for look in looks], [max(LEAST, look["p"]) for look in looks]
    sizes = [6 + 50 * look["epoch"] / looks[-1]["epoch"] for look in looks]
    axis.scatter(x, y, s=sizes, color=colour, alpha=0.65, linewidths=0)


def tell(result: Result) -> str:
    """The last look of every thief, and how often the test told it from the clean one."""
    asked = result["config"]["parameters"]
    header = ["thief trained on answers of", "accuracy", "p, last epoch", "median log10 p", "looks with p below"]
    header[-1] += f" {asked['significant']:g}"
    lines = []
    for name, looks in result["rows"].items():
        late = looks[len(looks) // 2 :]
        below = [sum(look["p"] < asked["significant"] for look in part) for part in (looks, late)]
        middle = float(np.median([math.log10(max(look["p"], 1e-300)) for look in looks]))
        counts = f"{below[0]} of {len(looks)} (second half: {below[1]} of {len(late)})"
        lines.append([name, f"{looks[-1]['accuracy']:.1%}", f"{looks[-1]['p']:.2g}", f"{middle:.1f}", counts])
    return markdown_table(header, lines) + (
        f"\n{result['queries']} query images ({pool_name(asked['pool'])}), {asked['attack']} thieves, "
        f"seed {asked['seed']}.\n"
    )


STUDY = Study(ForgetQuality, measure, draw, tell)
