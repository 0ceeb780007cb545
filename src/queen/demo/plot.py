"""What every policy costs a benign client, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queen.plots import png

COLOURS = {"paper": "#c8102e", "strict": "#e8a33d", "sentinel": "#1b7f4d"}
PANELS = (
    ("right", "answered with the true label", (0, 1.04)),
    ("answered", "answered at all", (0, 1.04)),
    ("l1", "L1 distance from honest answers", (-0.04, 2.04)),
)


def draw_cost(cost: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A PNG with one panel per figure and one line per policy, over the number of queries a benign client has sent."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for axis, (key, title, limits) in zip(axes, PANELS, strict=True):
        for name, curve in cost.items():
            axis.plot(curve["queries"], curve[key], marker="o", markersize=3.5, color=COLOURS.get(name), label=name)
        axis.set(title=title, xlabel="queries sent", ylim=limits)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    return png(figure)
