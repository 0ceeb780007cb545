"""How many simulated pirates a reversed answer needs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import GREEN, RED
from queen.bench.spec import Spec
from queen.bench.studies.base import FEW_CLIENTS, Result, Study, StudyContext
from queen.bench.studies.formatting import percent, pool_name
from queen.bench.studies.needs import StudyNeeds
from queen.plots import png

PAPER = {1: 0.5209, 2: 0.5259, 3: 0.5256, 5: 0.5127, 10: 0.5024}  # CIFAR-10, attacked by D-DAE+


@dataclass(frozen=True, kw_only=True)
class ShadowModels:
    """How many shadow models. Limits are small and images of the victim's own kind, so that answers are reversed."""

    counts: tuple[int, ...] = (1, 2, 3, 5, 10)
    defense: str = "queen"
    attacks: tuple[str, ...] = ("direct",)
    pool: str = "own_kind"
    radius: float = 0.02
    threshold: float = 0.0002
    seeds: tuple[int, ...] = (0, 1)


def measure(context: StudyContext, parameters: ShadowModels) -> dict[str, Any]:
    """One row per number of shadow models; each has a bundle of its own, with the same map."""
    thieves = (parameters.pool, parameters.attacks, parameters.seeds)
    clean = _scores(context.steal_all("none", *thieves, utility=FEW_CLIENTS), "accuracy")
    rows = []
    for count in context.each("shadow models", parameters.counts):
        options = {"radius": parameters.radius, "threshold": parameters.threshold, "shadow_models": count}
        depends_on = [parameters.defense, parameters.pool, options, parameters.attacks, parameters.seeds]
        row = context.cached("shadows", depends_on, partial(_row, context, parameters, options))
        rows.append(row | {"count": count})
    return {"rows": rows, "undefended": clean}


def _row(context: StudyContext, parameters: ShadowModels, options: Result) -> dict[str, Any]:
    thieves = (parameters.pool, parameters.attacks, parameters.seeds)
    results = context.steal_all(parameters.defense, *thieves, options=options, utility=FEW_CLIENTS)
    runs = results[parameters.attacks[0]]
    return {
        "reversed": statistics.mean(r["verdicts"].get("B", 0.0) for r in runs),
        "label_kept": statistics.mean(r["answers"]["label_kept"] for r in runs),
        "thief": _scores(results, "accuracy"),
        "agreement": _scores(results, "agreement"),
        "flags": sorted({flag for own in results.values() for r in own for flag in r["flags"]}),
    }


def _scores(results: Mapping[str, Sequence[Result]], name: str) -> dict[str, list[float]]:
    return {attack: [r["thief"][name] for r in own] for attack, own in results.items()}


def draw(result: Result) -> bytes:
    """Thieves over the number of shadow models, one dot per seed, beside the paper's figures."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    rows = result["rows"]
    counts = [row["count"] for row in rows]
    for attack, colour in zip(rows[0]["thief"], (RED, "#e08a1e", "#7a5195"), strict=False):
        runs = [[100 * value for value in row["thief"][attack]] for row in rows]
        for at, values in enumerate(runs):
            axis.scatter([at] * len(values), values, color=colour, s=14, alpha=0.5, linewidths=0)
        axis.plot([statistics.mean(values) for values in runs], "o-", color=colour, label=f"thief, {attack}")
        clean = 100 * statistics.mean(result["undefended"][attack])
        axis.axhline(clean, color=colour, linestyle=":", linewidth=1.2, label=f"undefended, {attack}")
    paper = [100 * PAPER[count] if count in PAPER else float("nan") for count in counts]
    axis.plot(paper, "^--", color="#7a7a85", markersize=5, label="the paper's (CIFAR-10, D-DAE+)")
    axis.plot([100 * row["reversed"] for row in rows], "s-", color=GREEN, markersize=4, label="reversed answers")
    axis.set_xticks(range(len(counts)), [str(count) for count in counts])
    axis.set(xlabel="shadow models", ylabel="percent", ylim=(0, 102))
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return png(figure)


def to_markdown(result: Result) -> str:
    """The table beside the paper's, and how much the number matters."""
    parameters, rows = result["config"]["parameters"], result["rows"]
    attacks = list(rows[0]["thief"])
    header = ["shadow models", "B reversed", "label kept", *(f"thief {attack}" for attack in attacks), "paper"]
    lines = [
        [
            str(row["count"]),
            percent(row["reversed"]),
            percent(row["label_kept"]),
            *(percent(*row["thief"][attack]) for attack in attacks),
            percent(PAPER[row["count"]]) if row["count"] in PAPER else "-",
        ]
        for row in rows
    ]
    means = [statistics.mean(row["thief"][attacks[0]]) for row in rows]
    clean = statistics.mean(result["undefended"][attacks[0]])
    paper = 100 * (max(PAPER.values()) - min(PAPER.values()))
    return markdown_table(header, lines) + (
        f"\n{parameters['defense']}, {pool_name(parameters['pool'])} images, radius {parameters['radius']:g}, "
        f"threshold {parameters['threshold']:g}, seeds {parameters['seeds']}. Between {min(means):.1%} and "
        f"{max(means):.1%}: a spread of {100 * (max(means) - min(means)):.1f} points over the numbers of shadow models "
        f"(the paper's: {paper:.1f}). The undefended {attacks[0]} thief has {clean:.1%}.\n"
    )


def _needs(_: Spec, parameters: ShadowModels) -> StudyNeeds:
    return StudyNeeds(defenses=("none", parameters.defense), attacks=parameters.attacks, pools=(parameters.pool,))


STUDY = Study(ShadowModels, measure, draw, to_markdown, _needs)
