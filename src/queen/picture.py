"""The 2-D map as a picture: discs, benign points and one client's queries coloured by verdict."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from queen.bundle import Bundle

VERDICT_COLOURS = {"A": "#7a7a85", "B": "#c8102e", "C": "#1b7f4d", "D": "#1f5fbf"}
VERDICT_WORDS = {"A": "A outside", "B": "B spent", "C": "C fresh", "D": "D repeat"}
CLASS_COLOURS = [
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#b6992d", "#b07aa1", "#ff9da7", "#9c755f", "#79706e",
]  # fmt: skip


@dataclass(frozen=True)
class Queries:
    """Points (n, 2) on the plane and one verdict letter each."""

    points: NDArray[np.float64]
    letters: str


def draw_map(
    bundle: Bundle,
    title: str,
    *,
    benign: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None,
    queries: Queries | None = None,
) -> bytes:
    """A PNG of the plane; `benign` are points (n, 2) and labels (n,) drawn faintly in their class's colour."""
    figure = Figure(figsize=(7, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if benign is not None:
        points, labels = benign
        colours = [CLASS_COLOURS[k % len(CLASS_COLOURS)] for k in labels]
        axes.scatter(points[:, 0], points[:, 1], s=4, c=colours, alpha=0.25, linewidths=0)
    if queries is not None:
        _draw_queries(axes, queries)
    _draw_discs(axes, bundle)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_aspect("equal", adjustable="datalim")
    axes.tick_params(labelsize=8, colors="#666666")
    for side in axes.spines.values():
        side.set_color("#cccccc")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_queries(axes: Any, queries: Queries) -> None:
    letters = np.array(list(queries.letters))
    for letter in "ADCB":  # the rare and telling ones on top
        chosen = queries.points[letters == letter]
        label = f"{VERDICT_WORDS[letter]}: {len(chosen) / len(letters):.0%}"
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=9, color=VERDICT_COLOURS[letter], alpha=0.7, linewidths=0, label=label
        )
    axes.legend(loc="best", fontsize=9, framealpha=0.9, title="queries by verdict", title_fontsize=9)


def _draw_discs(axes: Any, bundle: Bundle) -> None:
    geometry = bundle.geometry
    for k, (centre, spread) in enumerate(zip(geometry.centres.tolist(), geometry.spreads.tolist(), strict=True)):
        colour = CLASS_COLOURS[k % len(CLASS_COLOURS)]
        axes.add_patch(Circle(centre, spread, fill=False, edgecolor=colour, linewidth=1.6))
        if geometry.classes <= 30:  # more names than that only hide the discs
            box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
            axes.annotate(bundle.name_of(k), centre, ha="center", va="center", fontsize=9, weight="bold", bbox=box)


def plane_points(bundle: Bundle, relative: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Relative points back on the plane: z = c^k + d^k p."""
    centres, spreads = bundle.geometry.centres.cpu().numpy(), bundle.geometry.spreads.cpu().numpy()
    return np.asarray(centres[labels] + spreads[labels, None] * relative)
