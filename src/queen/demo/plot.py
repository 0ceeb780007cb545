"""What every policy costs a benign client, and what a copy costs a thief, as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queen.plots import drawn_for, png, shade
from queen.price.curve import Curve

COLOURS = {"paper": "#c8102e", "strict": "#e8a33d", "sentinel": "#1b7f4d"}
PANELS = (
    ("right", "answered with the true label", (0, 1.04)),
    ("answered", "answered at all", (0, 1.04)),
    ("l1", "L1 distance from honest answers", (-0.04, 2.04)),
)

IMAGE_COLOURS = {"held-out": "#1f5fbf", "training": "#c8102e", "foreign": "#7a7a85"}


def draw_cost(cost: Mapping[str, Mapping[str, Any]], *, dark: bool = False) -> bytes:
    """A PNG with one panel per figure and one line per policy, over the number of queries a benign client has sent."""
    with drawn_for(dark=dark):
        return _draw_cost(cost, dark)


def _draw_cost(cost: Mapping[str, Mapping[str, Any]], dark: bool) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for axis, (key, title, limits) in zip(axes, PANELS, strict=True):
        for name, curve in cost.items():
            colour = shade(COLOURS[name], dark=dark) if name in COLOURS else None
            axis.plot(curve["queries"], curve[key], marker="o", markersize=3.5, color=colour, label=name)
        axis.set(title=title, xlabel="queries sent", ylim=limits)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    return png(figure)


def draw_price(curves: Mapping[str, Curve], *, dark: bool = False) -> bytes:
    """A PNG with one panel per model: how well copies agree with it, over how many honest answers they learned from.

    One line for every kind of images, dashed where the copies learned from labels alone; the shade goes from the lowest
    seed to the highest.
    """
    with drawn_for(dark=dark):
        return _draw_price(curves, dark)


def _draw_price(curves: Mapping[str, Curve], dark: bool) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(5.8 * len(curves), 3.6), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (name, curve) in zip(panels, curves.items(), strict=True):
        for images, label_only in dict.fromkeys((row.images, row.label_only) for row in curve.rows):
            rows = [row for row in curve.rows if (row.images, row.label_only) == (images, label_only)]
            answers, colour = [row.answers for row in rows], shade(IMAGE_COLOURS[images], dark=dark)
            axis.fill_between(answers, [row.low for row in rows], [row.high for row in rows], color=colour, alpha=0.12)
            label = f"{images} images, {'labels alone' if label_only else 'probabilities'}"
            style = {"linestyle": "--" if label_only else "-", "marker": "o", "markersize": 3.5, "label": label}
            axis.plot(answers, [row.agreement for row in rows], color=colour, **style)
        axis.set(title=name, xscale="log", ylim=(0, 1.04), xlabel="honest answers")
        axis.set_xticks(sorted({row.answers for row in curve.rows if str(row.answers).strip("0") in ("1", "3")}))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.minorticks_off()
        axis.set_ylabel("share answered like the model")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, loc="lower right", fontsize=9)
    return png(figure)
