"""The pictures of docs/how-it-works.md, from one small model: `python -m tools.explain` measures it anew.

What is measured is in results/how-it-works/digits.json; `make pages` draws it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import queen
from queen.bench.datasets import digits, load_set
from queen.options import Limits
from queen.plots import CLASS_COLOURS, VERDICT_COLOURS, VERDICT_WORDS, plane_points, png
from queen.training import Schedule, train
from queen.zoo import build

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "results" / "how-it-works" / "digits.json"
DIGIT = 3  # whose disc is shown with its records
RADIUS, THRESHOLD = 0.25, 0.5  # larger than anybody would choose, so that records can be seen
CLIENT_COLOURS = {"client": "#1b7f4d", "thief": "#c8102e", "thief with as much cover": "#e8a33d"}
Explained = Mapping[str, Any]


def measure(epochs: int = 16) -> dict[str, Any]:
    """One model on 8x8 digits: where images lie on its plane, a class that is used up, and three clients' evidence."""
    x, y = digits()
    torch.manual_seed(0)  # of the first weights
    generator = torch.Generator().manual_seed(0)
    model = train(build("small_cnn", classes=10), x[:1000], y[:1000], Schedule(epochs=epochs), generator)
    guard = queen.protect(model, (x[:1000], y[:1000]), calibration=x[1000:1400], secret=bytes(32))
    held_out, foreign = x[1400:], load_set("photo_patches", "train", size=8, channels=1).x
    foreign = torch.as_tensor(foreign)[torch.randperm(len(foreign), generator=generator)[:300]].float()
    geometry = guard.bundle.geometry
    return {
        "accuracy": round(float((model(held_out).argmax(1) == y[1400:]).float().mean()), 3),
        "discs": [[*map(_short, centre), _short(spread)] for centre, spread in zip(
            geometry.centres.tolist(), geometry.spreads.tolist(), strict=True)],
        "held-out": _on_plane(guard, held_out),
        "photographs": _on_plane(guard, foreign),
        "class": _used_up(guard, x),
        "bar": _short(guard.bar or 0.0),
        "wealth": {
            "client": _wealth(guard, held_out),
            "thief": _wealth(guard, foreign),
            "thief with as much cover": _wealth(guard, torch.stack([foreign[:200], held_out[:200]], 1).flatten(0, 1)),
        },
    }  # fmt: skip


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def _on_plane(guard: queen.Guard, x: Tensor) -> list[list[float]]:
    """Place and predicted class of every image."""
    batch = guard.measure(x)
    points = plane_points(guard.bundle, np.asarray(batch.points, np.float64), batch.labels).tolist()
    return [[*map(_short, point), label] for point, label in zip(points, batch.labels.tolist(), strict=True)]


def _used_up(guard: queen.Guard, x: Tensor) -> dict[str, Any]:
    """All images of one predicted class, sent by one client: places relative to the disc, verdicts and coverage."""
    strict = guard.fresh(policy="strict", limits=Limits(radius=RADIUS, threshold=THRESHOLD))
    batch = strict.measure(x)
    chosen = x[torch.as_tensor(batch.labels == DIGIT)]
    points, verdicts, coverage = [], "", []
    for image in chosen:
        one = strict.measure(image[None])
        verdicts += strict.judge(one, "client").letters
        points.append([*map(_short, one.points[0].tolist())])
        coverage.append(_short(strict.ledger.coverage("client").get(DIGIT, 0.0)))
    return {"digit": DIGIT, "radius": RADIUS, "threshold": THRESHOLD, "points": points, "verdicts": verdicts,
            "coverage": coverage}  # fmt: skip


def _wealth(guard: queen.Guard, x: Tensor) -> list[float]:
    """The evidence against a client after each of its queries, which are all answered."""
    watching, wealth = guard.fresh(observe=True), []
    for image in x:
        watching.answer(image[None], client="one")
        wealth.append(_short(watching.ledger.standing("one").wealth))
    return wealth


def draw_plane(found: Explained) -> bytes:
    """The plane with the disc of every class, held-out digits in their class's colour and photographs in grey."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    from matplotlib.patches import Circle  # noqa: PLC0415

    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    axes = figure.subplots()
    for name, marker, size in (("photographs", "x", 16), ("held-out", "o", 14)):
        for k in range(len(found["discs"])):
            points = [place[:2] for place in found[name] if place[2] == k]
            colour = CLASS_COLOURS[k] if name == "held-out" else "#55555f"
            style: dict[str, Any] = {"marker": marker, "alpha": 0.55, "linewidths": 0 if marker == "o" else 0.9}
            axes.scatter([x for x, _ in points], [y for _, y in points], s=size, color=colour, **style)
    middle = torch.tensor(found["discs"])[:, :2].mean(0)
    for k, (*centre, spread) in enumerate(found["discs"]):
        axes.add_patch(Circle(tuple(centre), spread, fill=False, edgecolor=CLASS_COLOURS[k], linewidth=2))
        x, y = (30 * torch.nn.functional.normalize(torch.tensor(centre) - middle, dim=0)).tolist()
        words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 13, "weight": "bold", "color": "#222222"}
        axes.annotate(str(k), centre, xytext=(x, y), textcoords="offset points", **words)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_axis_off()
    return png(figure)


def draw_class(found: Explained) -> bytes:
    """One class's disc with the queries of one client by verdict, and how its coverage grows."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    from matplotlib.patches import Circle  # noqa: PLC0415

    one = found["class"]
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    disc, growth = figure.subplots(1, 2)
    disc.add_patch(Circle((0, 0), 1, fill=False, edgecolor="#333333", linewidth=1.6))
    for letter in "ADBC":
        points = [point for point, verdict in zip(one["points"], one["verdicts"], strict=True) if verdict == letter]
        for point in points if letter == "C" else ():
            disc.add_patch(Circle(tuple(point), one["radius"], color=VERDICT_COLOURS["C"], alpha=0.1, linewidth=0))
        label = f"{VERDICT_WORDS[letter]}: {len(points)}"
        places = [x for x, _ in points], [y for _, y in points]
        disc.scatter(*places, s=16, color=VERDICT_COLOURS[letter], linewidths=0, label=label)
    disc.set(xlim=(-3.4, 1.5), ylim=(-1.9, 2.0), aspect="equal", title=f"disc of the digit {one['digit']}")
    disc.set_axis_off()
    disc.legend(fontsize=9, frameon=False, loc="center left")
    growth.plot(range(1, len(one["coverage"]) + 1), one["coverage"], color=VERDICT_COLOURS["C"])
    growth.axhline(one["threshold"], color="#c8102e", linestyle="--", linewidth=1)
    growth.annotate("threshold", (len(one["coverage"]), one["threshold"]), ha="right", va="bottom", color="#c8102e")
    growth.set(xlabel="queries of this class", title="coverage (CQS)", ylim=(0, None))
    growth.spines[["top", "right"]].set_visible(False)
    return png(figure)


def draw_wealth(found: Explained) -> bytes:
    """Evidence against three clients over their queries, and the bar."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, colour in CLIENT_COLOURS.items():
        wealth = found["wealth"][name]
        end = next((i + 1 for i, one in enumerate(wealth) if one >= found["bar"]), len(wealth))
        axes.plot(range(1, end + 1), wealth[:end], color=colour, label=name)
        if end < len(wealth):
            axes.scatter([end], [wealth[end - 1]], color=colour, zorder=3)
    axes.axhline(found["bar"], color="#333333", linestyle="--", linewidth=1)
    axes.annotate("the bar: accused", (len(found["wealth"]["client"]), found["bar"]), ha="right", va="bottom")
    axes.set(yscale="log", ylim=(1e-4, 30 * found["bar"]), xlabel="queries", ylabel="wealth: evidence against a client")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    return png(figure)


def explained_lines(path: Path = RESULT) -> str:
    """What the last picture shows, in words."""
    found = json.loads(path.read_text())
    bar, wealth = found["bar"], found["wealth"]
    client = wealth["client"]
    after = {
        name: 1 + next(i for i, one in enumerate(wealth[name]) if one >= bar) for name in wealth if name != "client"
    }
    thief, covered = after.values()
    return (
        f"The bar is {bar:,.0f}. The thief is accused with its query number {thief}; with one held-out digit sent for "
        f"every photograph it takes {covered} queries, {ceil(covered / 2)} of them photographs. The evidence against "
        f"the client, who sends {len(client)} held-out digits, never exceeds {max(client):.1f}.\n"
    )


PICTURES = {"plane": draw_plane, "class": draw_class, "wealth": draw_wealth}


def draw(folder: Path) -> None:
    """Write the pictures into docs/."""
    found = json.loads(RESULT.read_text())
    for name, picture in PICTURES.items():
        (folder / f"how-it-works-{name}.png").write_bytes(picture(found))


def main() -> None:
    """Measure, and store the result."""
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(measure()) + "\n")
    sys.stdout.write(f"{RESULT.relative_to(ROOT)}: run make pages\n")


if __name__ == "__main__":
    main()
