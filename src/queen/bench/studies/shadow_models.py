"""How many simulated pirates a reversed answer needs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import GREEN, RED
from queen.bench.spec import Spec
from queen.bench.studies.base import FEW_CLIENTS, Result, Study, StudyContext
from queen.bench.studies.formatting import percent, pool_name
from queen.bench.studies.needs import StudyNeeds
from queen.plots import png

HEADS, COLOURS = "head", (RED, "#e08a1e", "#7a5195")
# The paper's accuracies of thieves, by protectee and attack; what is not in it stands beside the first of them.
PAPER = {
    ("cifar10", "ddae_plus"): {1: 0.5209, 2: 0.5259, 3: 0.5256, 5: 0.5127, 10: 0.5024},
    ("cifar10", "pbayes"): {1: 0.6712, 2: 0.6641, 3: 0.6584, 5: 0.6533, 10: 0.6567},
    ("cifar100", "ddae_plus"): {1: 0.5757, 2: 0.5678, 3: 0.5712, 5: 0.5659, 10: 0.5661},
    ("cifar100", "pbayes"): {1: 0.5732, 2: 0.5651, 3: 0.5672, 5: 0.5684, 10: 0.5645},
}


@dataclass(frozen=True, kw_only=True)
class ShadowModels:
    """How many shadow models, and of which kinds: heads on the victim's features, or networks of the zoo by name.

    Limits are small and images of the victim's own kind, so that answers are reversed.
    """

    counts: tuple[int, ...] = (1, 2, 3, 5, 10)
    kinds: tuple[str, ...] = (HEADS,)
    defense: str = "queen"
    attacks: tuple[str, ...] = ("direct",)
    pool: str = "own_kind"
    radius: float = 0.02
    threshold: float = 0.0002
    seeds: tuple[int, ...] = (0, 1)


def measure(context: StudyContext, parameters: ShadowModels) -> dict[str, Any]:
    """One row per kind and number of shadow models; each has a bundle of its own, with the same map."""
    thieves = (parameters.pool, parameters.attacks, parameters.seeds)
    clean = _scores(context.steal_all("none", *thieves, utility=FEW_CLIENTS), "accuracy")
    rows = []
    for kind, count in context.each("shadow models", product(parameters.kinds, parameters.counts)):
        limits = {"radius": parameters.radius, "threshold": parameters.threshold}
        options = {**limits, "shadow_kind": kind, "shadow_models": count}
        depends_on = [parameters.defense, parameters.pool, options, parameters.attacks, parameters.seeds]
        row = context.cached("shadows", depends_on, partial(_row, context, parameters, options))
        rows.append(row | {"kind": kind, "count": count})
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
    """A panel for each kind: thieves over the number of shadow models, one dot per seed, beside the paper's figures."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    kinds = _by_kind(result)
    figure = Figure(figsize=(3 + 4 * len(kinds), 4.2), layout="constrained")
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, (kind, rows) in zip(axes, kinds.items(), strict=True):
        _draw_kind(axis, result, rows)
        axis.set(xlabel=f"shadow models ({_kind_name(kind)})", ylim=(0, 102))
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("percent")
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return png(figure)


def _draw_kind(axis: Any, result: Result, rows: Sequence[Result]) -> None:
    counts = [row["count"] for row in rows]
    for attack, colour in zip(rows[0]["thief"], COLOURS, strict=False):
        runs = [[100 * value for value in row["thief"][attack]] for row in rows]
        for at, values in enumerate(runs):
            axis.scatter([at] * len(values), values, color=colour, s=14, alpha=0.5, linewidths=0)
        axis.plot([statistics.mean(values) for values in runs], "o-", color=colour, label=f"thief, {attack}")
        clean = 100 * statistics.mean(result["undefended"][attack])
        axis.axhline(clean, color=colour, linestyle=":", linewidth=1.2, label=f"undefended, {attack}")
        name, paper = _paper_of(result, attack)
        printed = [100 * paper.get(count, float("nan")) for count in counts]
        axis.plot(printed, "^--", color=colour, alpha=0.5, markersize=5, label=f"the paper's ({name})")
    axis.plot([100 * row["reversed"] for row in rows], "s-", color=GREEN, markersize=4, label="reversed answers")
    axis.set_xticks(range(len(counts)), [str(count) for count in counts])


def _by_kind(result: Result) -> dict[str, list[Result]]:
    """Rows by the kind of shadow models; results from before there were others are of heads."""
    kinds: dict[str, list[Result]] = {}
    for row in result["rows"]:
        kinds.setdefault(row.get("kind", HEADS), []).append(row)
    return kinds


def _kind_name(kind: str) -> str:
    return "heads" if kind == HEADS else kind


def _paper_of(result: Result, attack: str) -> tuple[str, Mapping[int, float]]:
    """The paper's figures that stand beside an attack, and of what they are."""
    key = (result["protectee"]["name"], attack)
    key = key if key in PAPER else next(iter(PAPER))
    return ", ".join(key), PAPER[key]


def to_markdown(result: Result) -> str:
    """The table beside the paper's, and how much the number matters."""
    parameters = result["config"]["parameters"]
    attacks = list(result["rows"][0]["thief"])
    papers = [_paper_of(result, attack) for attack in attacks]
    header = ["shadow models", "B reversed", "label kept", *(f"thief {attack}" for attack in attacks)]
    header += [f"paper, {name}" for name, _ in papers]
    lines, sentences = [], []
    for kind, rows in _by_kind(result).items():
        for row in rows:
            shares = [percent(row["reversed"]), percent(row["label_kept"])]
            printed = [percent(paper[row["count"]]) if row["count"] in paper else "-" for _, paper in papers]
            thieves = [percent(*row["thief"][attack]) for attack in attacks]
            lines.append([f"{row['count']} {_kind_name(kind)}", *shares, *thieves, *printed])
        sentences += [_spread_line(result, kind, rows, attack) for attack in attacks]
    return markdown_table(header, lines) + (
        f"\n{parameters['defense']}, {pool_name(parameters['pool'])} images, radius {parameters['radius']:g}, "
        f"threshold {parameters['threshold']:g}, seeds {parameters['seeds']}.\n\n{''.join(sentences)}"
    )


def _spread_line(result: Result, kind: str, rows: Sequence[Result], attack: str) -> str:
    means = [statistics.mean(row["thief"][attack]) for row in rows]
    clean = statistics.mean(result["undefended"][attack])
    _, paper = _paper_of(result, attack)
    theirs = 100 * (max(paper.values()) - min(paper.values()))
    return (
        f"- {_kind_name(kind)}, {attack}: between {min(means):.1%} and {max(means):.1%}, a spread of "
        f"{100 * (max(means) - min(means)):.1f} points over the numbers of shadow models (the paper's: {theirs:.1f}). "
        f"The undefended thief has {clean:.1%}.\n"
    )


def _needs(_: Spec, parameters: ShadowModels) -> StudyNeeds:
    return StudyNeeds(defenses=("none", parameters.defense), attacks=parameters.attacks, pools=(parameters.pool,))


STUDY = Study(ShadowModels, measure, draw, to_markdown, _needs)
