"""Results as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import Any

from queen.bench.render.leaderboard import FARTHEST, BoardRow, Leaderboard
from queen.bench.render.table import BEST, Row, Table
from queen.plots import GROUND, INK, drawn_for, png, shade

GREY, RED, GREEN, PALE = "#9a9aa5", "#c8102e", "#1b7f4d", "#8cc9a9"


def draw_tradeoff(table: Table, chance: float, *, dark: bool = False) -> bytes:
    """What the best published attacker gets and what benign clients get, three bars per defense."""
    with drawn_for(dark=dark):
        return _draw_tradeoff(table, chance, dark)


def _draw_tradeoff(table: Table, chance: float, dark: bool) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    benign = next(row for row in table.rows if row.name.endswith("many clients"))
    alone = next(row for row in table.rows if row.name.endswith("one client"))
    stolen = _strongest([row for row in table.rows if row.name == BEST], len(table.columns))
    figure = Figure(figsize=(8.4, 1.6 + 0.5 * len(table.columns)), layout="constrained")
    axis = figure.subplots()
    places = range(len(table.columns))
    for values, colour, shift, name in (
        (stolen, RED, -0.26, "best published thief"),
        ([_percent(entry) for entry in benign.entries], GREEN, 0.0, "many benign clients"),
        ([_percent(entry) for entry in alone.entries], PALE, 0.26, "one busy benign client"),
    ):
        bars = axis.barh(
            [place + shift for place in places], values, height=0.24, color=shade(colour, dark=dark), label=name
        )
        axis.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    axis.axvline(100 * chance, color=shade(GREY, dark=dark), linestyle=":", linewidth=1)
    axis.set_yticks(list(places), table.columns, fontsize=8)
    axis.set(title=f"{table.protectee}: accuracy (%)", xlim=(0, 108))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3)
    axis.spines[["top", "right"]].set_visible(False)
    return png(figure)


def _strongest(rows: Sequence[Row], columns: int) -> list[float]:
    """The best accuracy over all query strategies in percent, one per defense; NaN where there is none."""
    entries = [[row.entries[place] for row in rows] for place in range(columns)]
    return [max((_percent(entry) for entry in column if entry), default=float("nan")) for column in entries]


def draw_matrix(table: Table, *, dark: bool = False) -> bytes:
    """All thieves as a coloured grid: the redder, the better the copy; flagged results have a star."""
    with drawn_for(dark=dark):
        return _draw_matrix(table, dark)


def _draw_matrix(table: Table, dark: bool) -> bytes:
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415  (an extra)
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = [row for row in table.rows if row.query]
    figure = Figure(figsize=(1.8 + 0.75 * len(table.columns), 1.4 + 0.28 * len(rows)), layout="constrained")
    axis = figure.subplots()
    shades = [[_percent(entry) for entry in row.entries] for row in rows]
    reds = LinearSegmentedColormap.from_list("reds", (GROUND[True], shade(RED, dark=True))) if dark else "Reds"
    axis.imshow(shades, cmap=reds, vmin=0, vmax=100, aspect="auto")
    for i, row in enumerate(rows):
        for j, text in enumerate(row.texts()):
            colour = INK[dark] if shades[i][j] <= 60 else GROUND[dark]
            axis.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(table.columns)), table.columns, rotation=35, ha="right", fontsize=8)
    axis.set_yticks(range(len(rows)), [f"{row.query} {row.name}" for row in rows], fontsize=8)
    axis.set_title(f"{table.protectee}: thief {table.metric.replace('_', ' ')} (%)", fontsize=10)
    return png(figure)


def _percent(entry: Any) -> float:
    return float("nan") if entry is None or entry.mean is None else 100 * float(entry.mean)


def draw_leaderboard(board: Leaderboard) -> bytes:
    """The best thief of every defense beside two kinds of benign cost, one row per defense and the best row on top.

    One kind alone would flatter somebody: refusing costs right answers, perturbing distorts all of them. A hollow
    point has attacks that were not run yet, a square is the best of the paper's attackers where others are better, a
    diamond is the best owner of the victim's encoder, and a triangle answers with something else than probabilities.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = board.standings
    figure = Figure(figsize=(11, 1.5 + 0.34 * len(rows)), layout="constrained")
    thief, lost, distorted = figure.subplots(1, 3, sharey=True, width_ratios=(2, 1, 1))
    victim = 100 * board.victim
    _draw_points(thief, RED, rows, [_times_100(one.stolen) for one in rows], "{:z.1f}")
    _draw_points(lost, GREEN, rows, [victim - _percent(one.one_client) for one in rows], "{:z.1f}")
    l1 = [float("nan") if one.l1 is None else one.l1 for one in rows]
    _draw_points(distorted, GREEN, rows, l1, "{:.3f}", most=FARTHEST)
    thief.axvline(100 * board.chance, color=GREY, linestyle=":", linewidth=1)
    thief.text(100 * board.chance, 1.01, "chance", transform=thief.get_xaxis_transform(), ha="center", fontsize=7)
    undefended = board.find("none")
    if undefended is not None and undefended.stolen is not None:
        place = 100 * undefended.stolen
        thief.axvline(place, color=RED, linestyle=":", linewidth=1)
        thief.text(place, 1.01, "undefended", transform=thief.get_xaxis_transform(), ha="center", fontsize=7)
    papers = [
        (_percent(one.published.entry), place)
        for place, one in enumerate(rows)
        if one.best and one.published and _percent(one.published.entry) < _percent(one.best.entry)
    ]
    for value, place in papers:
        thief.plot(value, place, "s", color=RED, markersize=5)
        thief.annotate(
            f"{value:z.1f}", (value, place), xytext=(-8, 0), textcoords="offset points", ha="right", va="center",
            fontsize=7, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    owners = [(_percent(one.encoder.entry), place) for place, one in enumerate(rows) if one.encoder]
    if owners:
        thief.plot(*zip(*owners, strict=True), "D", color=GREY, markersize=5)
    thief.set_yticks(range(len(rows)), [one.column for one in rows], fontsize=9)
    thief.set(xlabel="best thief's accuracy (%)", xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6))
    lost.set(xlabel="right answers one busy client loses (points)")
    distorted.set(xlabel="distance of its answers\nfrom honest ones (mean L1)")
    legend = ["Hollow: some of its attacks were not run yet."] * any(not one.complete for one in rows)
    legend += ["Square: the best of the paper's attackers, where others are better."] * bool(papers)
    legend += ["Diamond: a thief that owns the victim's encoder."] * bool(owners)
    legend += ["Triangle: farther than probabilities can be."] * any(value > FARTHEST for value in l1)
    lines = [" ".join(legend[place : place + 2]) for place in range(0, len(legend), 2)]
    figure.supxlabel("\n".join(lines), fontsize=8, color=GREY)
    return png(figure)


def _draw_points(
    axis: Any, colour: str, rows: Sequence[BoardRow], values: Sequence[float], form: str, most: float = inf
) -> None:
    """One point a row with its value beside it, on a line from zero; NaN is left out, what is above `most` stands there
    as a triangle."""
    for place, (one, value) in enumerate(zip(rows, values, strict=True)):
        if not isnan(value):
            end, inside = min(value, most), colour if one.complete else "white"
            axis.plot((0, end), (place, place), color=colour, linewidth=1, alpha=0.35, zorder=1)
            axis.plot(end, place, "o" if value <= most else ">", color=colour, markerfacecolor=inside, zorder=2)
            axis.annotate(
                form.format(value), (end, place), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
    axis.xaxis.label.set_fontsize(8)
    axis.tick_params(axis="x", labelsize=8)
    drawn = [0.0, *(min(value, most) for value in values if not isnan(value))]
    width = max(drawn) - min(drawn) or 1.0
    axis.set_xlim(min(drawn) - 0.06 * width, max(drawn) + 0.4 * width)  # room for the figures
    axis.spines[["top", "right"]].set_visible(False)


def _times_100(value: float | None) -> float:
    return float("nan") if value is None else 100 * value
