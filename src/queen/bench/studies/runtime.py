"""What protection costs in time: before the first query, and per 1,000 queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from queen.bench.markdown import markdown_table
from queen.bench.plots import GREEN, GREY, RED, png
from queen.bench.rivals_speed import query_times, seconds_per_thousand
from queen.bench.studies.base import Lab, Result, Study
from queen.bench.studies.quartiles import recipe
from queen.defenses import DEFENSES
from queen.defenses.base import Endpoint
from queen.defenses.queen import fitted

# Of the paper, on CIFAR-10: times of no defense, and seconds of the steps before the first query.
PAPER_RATIOS: Mapping[str, float] = {
    "none": 1.0,
    "reverse_sigmoid": 1.2,
    "mad": 24.0,
    "adaptive_misinformation": 1.9,
    "label_only": 0.95,
    "rounding": 1.07,
    "emdp": 1.2,
    "modelguard_w": 1.9,
    "queen": 3.3,
}
PAPERS = "the paper's, on CIFAR-10"
PAPER_STEPS: Mapping[str, float] = {"features": 15.30, "map": 66.91, "shadows": 94.18}


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Which defenses (all of the spec, if none is named), how many queries at once, how many turns."""

    defenses: tuple[str, ...] | None = None
    queries: int = 500
    repeats: int = 15


def measure(lab: Lab, asked: Runtime) -> dict[str, Any]:
    """Nothing here is kept for later: a time measured on another day proves nothing."""
    with lab.show.bar("preparation", 1) as advance:
        bundle = fitted(replace(lab.protectee.victim, cache=None), **recipe(lab))
        advance()
    names = dict.fromkeys(["none", *(asked.defenses or lab.spec.defenses)])
    services: dict[str, Endpoint] = {}
    for name in lab.each("starting defenses", names):
        run = lab.plan(name, seed=0)
        services[name] = DEFENSES[run.defense].start(lab.protectee.victim, run.generator("defense"), **run.options)
    x = lab.protectee.pool[: asked.queries]
    with lab.show.bar("asking", 2) as advance:
        seconds = seconds_per_thousand(services, x, asked.repeats)
        advance()
        ratios = query_times(services, x, asked.repeats)
        advance()
    return {
        "preparation": dict(bundle.report["seconds"]),
        "rows": {name: {"seconds_per_1000": seconds[name], "times_none": ratios[name]} for name in services},
        "batch": len(x),
    }


def draw(result: Result) -> bytes:
    """Times of no defense, ours beside the paper's."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = result["rows"]
    figure = Figure(figsize=(8, 1.2 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.axvline(1, color=GREY, linewidth=1)
    for place, (name, row) in enumerate(rows.items()):
        paper = PAPER_RATIOS.get(name, float("nan"))
        ours = row["times_none"]
        axis.plot([ours, paper], [place, place], color="#d5d5dc", linewidth=1.5, zorder=1)
        axis.scatter(paper, place, s=34, color=GREY, marker="D", label=PAPERS if place == 0 else None)
        colour = GREEN if name.startswith("queen") else RED
        axis.scatter(ours, place, s=40, color=colour, label="here" if place == 0 else None)
        axis.annotate(f"{ours:.2f}", (ours, place), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axis.minorticks_off()
    axis.set_xlabel(f"time of {result['batch']} queries, in times of no defense (log)")
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, loc="lower right")
    return png(figure)


def tell(result: Result) -> str:
    """Both tables, beside the paper's."""
    steps = markdown_table(
        ["preparation", "seconds", "paper, CIFAR-10"],
        [[step, f"{took:.2f}", _or_dash(PAPER_STEPS, step, ".1f")] for step, took in result["preparation"].items()],
    )
    times = markdown_table(
        ["defense", "seconds per 1,000 queries", "times none", "paper's"],
        [
            [name, f"{row['seconds_per_1000']:.4f}", f"{row['times_none']:.2f}", _or_dash(PAPER_RATIOS, name, "g")]
            for name, row in result["rows"].items()
        ],
    )
    hardware = result["hardware"]
    where = f"{hardware['device']}, {hardware['threads']} thread{'s' if hardware['threads'] > 1 else ''}"
    return f"{steps}\n{times}\nBatches of {result['batch']} queries of a new client each; {where}.\n"


def _or_dash(known: Mapping[str, float], name: str, form: str) -> str:
    return format(known[name], form) if name in known else "-"


STUDY = Study(Runtime, measure, draw, tell)
