"""Results as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queen.bench.render.table import BEST, Row, Table
from queen.plots import png

if TYPE_CHECKING:
    pass

GREY, RED, GREEN, PALE = "#9a9aa5", "#c8102e", "#1b7f4d", "#8cc9a9"


def draw_tradeoff(table: Table, chance: float) -> bytes:
    """What the best published attacker gets and what benign clients get, three bars per defense."""
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
        bars = axis.barh([place + shift for place in places], values, height=0.24, color=colour, label=name)
        axis.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    axis.axvline(100 * chance, color=GREY, linestyle=":", linewidth=1)
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


def draw_matrix(table: Table) -> bytes:
    """All thieves as a coloured grid: dark is a good copy; flagged results have a star."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = [row for row in table.rows if row.query]
    figure = Figure(figsize=(1.8 + 0.75 * len(table.columns), 1.4 + 0.28 * len(rows)), layout="constrained")
    axis = figure.subplots()
    shades = [[_percent(entry) for entry in row.entries] for row in rows]
    axis.imshow(shades, cmap="Reds", vmin=0, vmax=100, aspect="auto")
    for i, row in enumerate(rows):
        for j, text in enumerate(row.texts()):
            colour = "white" if shades[i][j] > 60 else "black"
            axis.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(table.columns)), table.columns, rotation=35, ha="right", fontsize=8)
    axis.set_yticks(range(len(rows)), [f"{row.query} {row.name}" for row in rows], fontsize=8)
    axis.set_title(f"{table.protectee}: thief {table.metric.replace('_', ' ')} (%)", fontsize=10)
    return png(figure)


def _percent(entry: Any) -> float:
    return float("nan") if entry is None or entry.mean is None else 100 * float(entry.mean)
