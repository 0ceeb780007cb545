"""The study `costs` as a picture and as a table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.studies.base import Result
from queen.bench.studies.formatting import percent, pool_name
from queen.plots import png

FIGURES: Mapping[str, str] = {  # of a benign client, and their names for people
    "accuracy": "benign right",
    "l1": "L1 distance",
    "calibration_error": "calibration error",
    "refused": "refused",
}
COLOURS = ("#7a7a85", "#1f5fbf", "#e08a1e", "#1b7f4d", "#c8102e", "#7a5195", "#b6992d", "#333333")
MARKS = "os^Dv*Px"


def draw(result: Result) -> bytes:
    """Over the number of queries: how often a benign client is right and how far off its answers are, then thieves."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    parameters = result["config"]["parameters"]
    pools = parameters["pools"]
    figure = Figure(figsize=(1.8 + 2.7 * (2 + len(pools)), 3.2), layout="constrained")
    right, apart, *thieves = figure.subplots(1, 2 + len(pools), sharex=True)
    for place, defense in enumerate(parameters["defenses"]):
        style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKS[place % len(MARKS)], "label": defense}
        _draw_curve(right, result["benign"][defense], "accuracy", 100, style)
        _draw_curve(apart, result["benign"][defense], "l1", 1, style)
        for axis, pool in zip(thieves, pools, strict=True):
            _draw_curve(axis, result["thieves"][defense][pool], "accuracy", 100, style)
    titles = ["benign client right (%)", "its answers' L1 distance", *(f"thief, {pool_name(p)} (%)" for p in pools)]
    for axis, title in zip((right, apart, *thieves), titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("queries", fontsize=8)
        axis.set_ylim(0, 2.04 if axis is apart else 102)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in thieves:
        axis.axhline(100 * result["protectee"]["chance"], color="#9a9aa5", linestyle=":", linewidth=1)
    figure.legend(*right.get_legend_handles_labels(), fontsize=8, loc="outside right center", frameon=False)
    return png(figure)


def _draw_curve(axis: Any, points: Sequence[Result], name: str, scale: float, style: Mapping[str, str]) -> None:
    """A figure's median over the queries; hollow where a run is flagged, a gap where nothing was answered."""
    queries = [point["queries"] for point in points]
    known = [[scale * value for value in point[name] if value is not None] for point in points]
    middle = [statistics.median(values) if values else float("nan") for values in known]
    faces = ["none" if any(point.get("flags", [])) else style["color"] for point in points]
    axis.plot(queries, middle, color=style["color"], linewidth=1.2)
    dots = {"c": faces, "edgecolors": style["color"], "marker": style["marker"], "label": style["label"]}
    axis.scatter(queries, middle, s=20, zorder=3, **dots)


def to_markdown(result: Result) -> str:
    """One row per column and number of queries: what the benign client got, and what thieves made of as many."""
    parameters = result["config"]["parameters"]
    pools = parameters["pools"]
    header = [
        "defense",
        "queries",
        *FIGURES.values(),
        *(f"thief, {pool_name(pool)} (honest answers)" for pool in pools),
    ]
    table = markdown_table(header, _lines(result, parameters["defenses"], pools))
    right, chance = (percent(result["protectee"][name]) for name in ("accuracy", "chance"))
    return (
        f"{table}\nIn percent, except for distances, which are from 0 to 2. Benign: median over {parameters['orders']} "
        "orders; a refused query counts as wrong, and is left out of distance and calibration error. Thieves: "
        f"direct, seeds {parameters['seeds']}; in brackets the number of honest answers that they got. The victim has "
        f"{right}, always guessing one class {chance}.\n\n{''.join(_notes(result))}"
    )


def _lines(result: Result, defenses: Sequence[str], pools: Sequence[str]) -> Iterator[list[str]]:
    for defense in defenses:
        benign = {point["queries"]: point for point in result["benign"][defense]}
        thieves = [{point["queries"]: point for point in result["thieves"][defense][pool]} for pool in pools]
        for queries in sorted({number for points in (benign, *thieves) for number in points}):
            cells = [_benign_cell(benign.get(queries), name) for name in FIGURES]
            yield [defense, str(queries), *cells, *(_thief_cell(points.get(queries)) for points in thieves)]


def _benign_cell(point: Result | None, name: str) -> str:
    if point is None:
        return "-"
    middle = statistics.median(point[name])
    return f"{middle:.3f}" if name == "l1" else percent(middle)


def _thief_cell(point: Result | None) -> str:
    if point is None:
        return "-"
    star = "*" if any(point["flags"]) else ""
    known = [value for value in point["accuracy"] if value is not None]
    return f"{percent(*known)}{star} ({statistics.median(point['honest']):g})"


def _notes(result: Result) -> Iterator[str]:
    """One line per flag, with the number of runs that have it."""
    points = [point for pools in result["thieves"].values() for curve in pools.values() for point in curve]
    runs = [flags for point in points for flags in point["flags"]]
    for flag, count in sorted(Counter(flag for flags in runs for flag in flags).items()):
        yield f"- \\* {flag}: {count} of {len(runs)} runs.\n"
    excused = sum(bool(explained) for point in points for explained in point["explained"])
    if excused:
        yield f"- The flags of {excused} runs are explained by measurements in their results and not marked here.\n"
