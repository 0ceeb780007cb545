"""What protection costs in time: before the first query, and per 1,000 queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import GREEN, GREY, RED
from queen.bench.spec import Spec
from queen.bench.speed.timing import ratios_to_none, seconds_per_thousand, time_in_turns
from queen.bench.studies.base import Result, Study, StudyContext
from queen.bench.studies.needs import StudyNeeds
from queen.defenses.base import Endpoint
from queen.plots import png

# The paper's: times divided by that of no defense (on CIFAR-10), and seconds of the steps before the first query.
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
PAPER_STEPS: Mapping[str, Mapping[str, float]] = {
    "cifar10": {"features": 15.30, "map": 66.91, "shadows": 94.18},
    "cifar100": {"features": 16.21, "map": 75.47, "shadows": 96.41},
    "mnist": {"features": 12.37, "map": 63.89, "shadows": 82.79},
}


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Which defenses (all of the spec, if none is named), how many queries in a batch, how many turns."""

    defenses: tuple[str, ...] | None = None
    queries: int = 500
    repeats: int = 15


def measure(context: StudyContext, parameters: Runtime) -> dict[str, Any]:
    """Nothing here comes from the cache: a time measured on another day proves nothing."""
    with context.show.bar("preparation", 1) as advance:
        bundle = context.fit_bundle(use_cache=False)
        advance()
    names = dict.fromkeys(["none", *(parameters.defenses or context.spec.defenses)])
    services: dict[str, Endpoint] = {}
    for name in context.each("starting defenses", names):
        trial = context.make_trial(name, seed=0)
        services[name] = trial.start_endpoint(context.protectee)
    x = context.protectee.pool[: parameters.queries]
    with context.show.bar("asking", 1) as advance:
        turns = time_in_turns(services, x, parameters.repeats)
        advance()
    seconds, ratios = seconds_per_thousand(turns, len(x)), ratios_to_none(turns)
    return {
        "preparation": dict(bundle.report["seconds"]),
        "rows": {name: {"seconds_per_1000": seconds[name], "times_none": ratios[name]} for name in services},
        "batch": len(x),
    }


def draw(result: Result) -> bytes:
    """Times divided by that of no defense, ours beside the paper's."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = result["rows"]
    figure = Figure(figsize=(8, 1.2 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.axvline(1, color=GREY, linewidth=1)
    for place, (name, row) in enumerate(rows.items()):
        paper = PAPER_RATIOS.get(name, float("nan"))
        ours = row["times_none"]
        axis.plot([ours, paper], [place, place], color="#d5d5dc", linewidth=1.5, zorder=1)
        label = "the paper's, on CIFAR-10" if place == 0 else None
        axis.scatter(paper, place, s=34, color=GREY, marker="D", label=label)
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


def to_markdown(result: Result) -> str:
    """Both tables, beside the paper's figures."""
    name = result["protectee"]["name"]
    beside = name if name in PAPER_STEPS else next(iter(PAPER_STEPS))
    paper = PAPER_STEPS[beside]
    steps = markdown_table(
        ["preparation", "seconds", f"paper, {beside}"],
        [[step, f"{took:.2f}", _or_dash(paper, step, ".1f")] for step, took in result["preparation"].items()],
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


def _or_dash(figures: Mapping[str, float], name: str, form: str) -> str:
    return format(figures[name], form) if name in figures else "-"


def _needs(spec: Spec, parameters: Runtime) -> StudyNeeds:
    return StudyNeeds(defenses=("none", *(parameters.defenses or spec.defenses)))


STUDY = Study(Runtime, measure, draw, to_markdown, _needs, takes_times=True)
