"""The study `detectors` as a picture and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import GREEN, RED
from queen.bench.studies.base import Result
from queen.bench.studies.formatting import percent
from queen.plots import png

LEVEL = 0.95  # of confidence limits


def draw(result: Result) -> bytes:
    """Above, honest answers before the alarm, one panel per way to ask; below, benign clients accused, by kind."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows, ways = result["rows"], list(result["covers"])
    kinds, height = _kinds(rows), 0.9 + 0.3 * len(rows)
    size = 1.4 + max(2.1 * len(ways), 0.9 * len(kinds)), 2 * height
    figure = Figure(figsize=size, layout="constrained")
    [[above], [below]] = figure.subfigures(2, 1, squeeze=False)
    panels = above.subplots(1, len(ways), sharey=True, squeeze=False)[0]
    for axis, way in zip(panels, ways, strict=True):
        _draw_leaks(axis, result, way)
    _draw_accused(below.subplots(), rows, kinds)
    panels[0].set_yticks(range(len(rows)), list(rows), fontsize=8)
    panels[0].set_ylim(len(rows) - 0.5, -0.7)
    return png(figure)


def _kinds(rows: Result) -> list[str]:
    """The kinds of benign clients, the same for all columns."""
    return list(next(iter(rows.values()))["benign"])


def _draw_leaks(axis: Any, result: Result, way: str) -> None:
    """One dot per seed, hollow where the thief was never accused."""
    for place, (name, row) in enumerate(result["rows"].items()):
        runs = row["attacks"][way]
        honest, colour = [run["honest"] for run in runs], GREEN if name.startswith("queen") else RED
        faces = ["white" if run["alarm"] is None else colour for run in runs]
        axis.scatter(honest, [place] * len(runs), s=30, c=faces, edgecolors=colour, alpha=0.6)
        middle = statistics.median(honest)
        axis.annotate(f"{middle:g}", (middle, place), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    axis.set_title(way, fontsize=9)
    axis.set_xlabel(f"honest answers of {_own_queries(result, way)}", fontsize=8)
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlim(0, 2 * _own_queries(result, way))
    axis.grid(axis="x", alpha=0.3)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_accused(axis: Any, rows: Result, kinds: Sequence[str]) -> None:
    shares = [
        [row["benign"][kind]["accused"] / row["benign"][kind]["clients"] for kind in kinds] for row in rows.values()
    ]
    axis.imshow(shares, cmap="Reds", vmin=0, vmax=1, aspect="auto")
    for place, line in enumerate(shares):
        for column, share in enumerate(line):
            colour = "white" if share > 0.6 else "black"
            axis.text(column, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(kinds)), [kind.replace(" ", "\n") for kind in kinds], fontsize=7)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axis.set_title("benign clients accused (%), by kind", fontsize=9)
    axis.spines[:].set_visible(False)


def _own_queries(result: Result, way: str) -> int:
    """How many of the thief's own images the budget buys: cover takes its part of it."""
    return int(result["budget"]) // (1 + int(result["covers"][way]))


def to_markdown(result: Result) -> str:
    """The tables of answers leaked before the alarm and of benign clients accused."""
    parameters, rows = result["config"]["parameters"], result["rows"]
    ways, kinds = list(result["covers"]), _kinds(rows)
    leaks = markdown_table(
        ["honest answers before the alarm of", *ways],
        [[name, *(_leaked(row["attacks"][way], result["covers"][way]) for way in ways)] for name, row in rows.items()],
    )
    accused = markdown_table(
        ["benign clients accused", "queries of each", *rows],
        [[kind, *_accused(kind, list(rows.values()))] for kind in kinds],
    )
    covered = [f"{_own_queries(result, way)} at {cover}:1" for way, cover in result["covers"].items() if cover]
    own = f" Cover is part of them: a thief sends {', '.join(covered)} images of its own." if covered else ""
    return (
        f"{leaks}\nMedian (lowest to highest) over seeds {parameters['seeds']}, of {result['budget']} queries; all at "
        f"alpha {parameters['alpha']:g} over a life of {result['life']} queries.{own}\n\n"
        f"{accused}\nOf {parameters['clients']} clients of every kind; in brackets the upper {LEVEL:.0%} limit of the "
        "share accused, in percent (Clopper and Pearson). "
        "Thresholds are chosen for `mixed` clients. No client sends an image twice, so that a kind with few images has "
        "a shorter life.\n"
    )


def _leaked(runs: Sequence[Result], cover: int) -> str:
    honest, alarms = [run["honest"] for run in runs], [run["alarm"] for run in runs if run["alarm"] is not None]
    text = f"{statistics.median(honest):g} ({min(honest)} to {max(honest)})"
    if alarms and cover:  # without cover it is the query after the last answer
        text += f", alarm at query {statistics.median(alarms):g}"
    return text if len(alarms) == len(runs) else f"{text}, {len(alarms)} of {len(runs)} caught"


def _accused(kind: str, rows: Sequence[Result]) -> list[str]:
    """How many queries clients of a kind send, and for every column how many of them are accused."""
    counted = [row["benign"][kind] for row in rows]
    least, most = counted[0]["queries"]
    return [
        f"{least}" if least == most else f"{least} to {most}",
        *(f"{one['accused']} ({percent(one['upper'])})" for one in counted),
    ]
