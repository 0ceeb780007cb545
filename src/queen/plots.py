"""Pictures as PNG, and the 2-D map as one: discs, benign points and one client's queries coloured by verdict."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from queen.bundle.bundle import Bundle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERDICT_COLOURS = {"A": "#7a7a85", "B": "#c8102e", "C": "#1b7f4d", "D": "#1f5fbf"}
VERDICT_WORDS = {"A": "A outside", "B": "B spent", "C": "C fresh", "D": "D repeat"}
CLASS_COLOURS = [
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#b6992d", "#b07aa1", "#ff9da7", "#9c755f", "#79706e",
]  # fmt: skip


INK = {False: "black", True: "#ececf1"}  # by whether the page is dark, as in the style sheet of the reports
SOFT = {False: "#666666", True: "#a3a3b0"}
LINE = {False: "#cccccc", True: "#3a3a44"}
GROUND = {False: "white", True: "#1f1f26"}
DARK_TWINS = {
    "#c8102e": "#ff5c74", "#e8a33d": "#f0b860", "#1b7f4d": "#4cc38a", "#1f5fbf": "#7db0ff", "#7a7a85": "#a3a3b0",
    "#9a9aa5": "#8a8a96", "#8cc9a9": "#2f7d58", "#333333": "#ececf1",
}  # fmt: skip


def shade(colour: str, *, dark: bool) -> str:
    """A colour that is seen on a light ground, or its twin for a dark one."""
    return DARK_TWINS[colour] if dark else colour


@contextmanager
def drawn_for(*, dark: bool) -> Iterator[None]:
    """What is drawn within has matplotlib's own colours, or those of a dark page."""
    from matplotlib import rc_context  # noqa: PLC0415  (an extra)

    colours: Any = {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), GROUND[True]),
        **dict.fromkeys(("text.color", "axes.labelcolor"), INK[True]),
        **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), SOFT[True]),
        **dict.fromkeys(("grid.color", "legend.edgecolor"), LINE[True]),
    }
    with rc_context(colours if dark else {}):
        yield


@dataclass(frozen=True)
class Queries:
    """Points (n, 2) on the plane, the model's labels (n,) and one verdict letter each."""

    points: NDArray[np.float64]
    labels: NDArray[np.int64]
    letters: str


def png(figure: Figure) -> bytes:
    """The picture's bytes, the same for the same figures; in 128 colours, which takes a third of the space."""
    from PIL import Image  # noqa: PLC0415  (an extra)

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=110, metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(128).save(small, "PNG", optimize=True)
    return small.getvalue()


def draw_map(
    bundle: Bundle,
    title: str,
    *,
    benign: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None,
    queries: Queries | None = None,
    dark: bool = False,
) -> bytes:
    """A PNG: on the left the plane with its discs, on the right all discs laid over each other, in relative units.

    `benign` are points (n, 2) and labels (n,), drawn faintly in their class's colour; `dark`: for a dark page.
    """
    with drawn_for(dark=dark):
        return _draw_map(bundle, title, benign, queries, dark)


def _draw_map(
    bundle: Bundle,
    title: str,
    benign: tuple[NDArray[np.float64], NDArray[np.int64]] | None,
    queries: Queries | None,
    dark: bool,
) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    from matplotlib.patches import Circle  # noqa: PLC0415

    figure = Figure(figsize=(11, 5.4), layout="constrained")
    plane, disc = figure.subplots(1, 2)
    if benign is not None:
        colours = [CLASS_COLOURS[k % len(CLASS_COLOURS)] for k in benign[1]]
        for axes, points in ((plane, benign[0]), (disc, relative_points(bundle, *benign))):
            axes.scatter(points[:, 0], points[:, 1], s=4, c=colours, alpha=0.25, linewidths=0)
    if queries is not None:
        _draw_queries(plane, queries.points, queries.letters, dark)
        _draw_queries(disc, relative_points(bundle, queries.points, queries.labels), queries.letters, dark)
        plane.legend(loc="best", fontsize=9, framealpha=0.9, title="queries by verdict", title_fontsize=9)
    _draw_discs(plane, bundle, dark)
    disc.add_patch(Circle((0, 0), 1, fill=False, edgecolor=shade("#333333", dark=dark), linewidth=1.6))
    plane.set_aspect("equal", adjustable="datalim")
    disc.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
    plane.set_title(title, loc="left", fontsize=11)
    disc.set_title("all discs laid over each other (radius 1)", loc="left", fontsize=11)
    for axes in (plane, disc):
        axes.tick_params(labelsize=8, colors=SOFT[dark])
        for side in axes.spines.values():
            side.set_color(LINE[dark])
    return png(figure)


def _draw_queries(axes: Any, points: NDArray[np.float64], letters: str, dark: bool) -> None:
    each = np.array(list(letters))
    for letter in "ADCB":  # the rare and telling ones on top
        chosen = points[each == letter]
        label = f"{VERDICT_WORDS[letter]}: {len(chosen) / len(each):.0%}"
        axes.scatter(
            *chosen.T, s=10, color=shade(VERDICT_COLOURS[letter], dark=dark), alpha=0.75, linewidths=0, label=label
        )


def _draw_discs(axes: Any, bundle: Bundle, dark: bool) -> None:
    from matplotlib.patches import Circle  # noqa: PLC0415  (an extra)

    geometry = bundle.geometry
    middle = geometry.centres.mean(0).tolist()
    for k, (centre, spread) in enumerate(zip(geometry.centres.tolist(), geometry.spreads.tolist(), strict=True)):
        colour = CLASS_COLOURS[k % len(CLASS_COLOURS)]
        axes.add_patch(Circle(centre, spread, fill=False, edgecolor=colour, linewidth=1.6))
        if geometry.classes <= 30:  # more names than that only hide the discs
            outward = np.subtract(centre, middle) / max(float(np.hypot(*np.subtract(centre, middle))), 1e-12)
            box = {"boxstyle": "round,pad=0.15", "facecolor": GROUND[dark], "edgecolor": "none", "alpha": 0.75}
            axes.annotate(
                bundle.name_of(k), centre, xytext=16 * outward, textcoords="offset points",
                ha="center", va="center", fontsize=10, weight="bold", color=colour, bbox=box,
            )  # fmt: skip


def relative_points(bundle: Bundle, points: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Points of the plane relative to their class's disc: p = (z - c^k) / d^k."""
    centres, spreads = bundle.geometry.centres.cpu().numpy(), bundle.geometry.spreads.cpu().numpy()
    return np.asarray((points - centres[labels]) / spreads[labels, None])


def plane_points(bundle: Bundle, relative: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Relative points back on the plane: z = c^k + d^k p."""
    centres, spreads = bundle.geometry.centres.cpu().numpy(), bundle.geometry.spreads.cpu().numpy()
    return np.asarray(centres[labels] + spreads[labels, None] * relative)
