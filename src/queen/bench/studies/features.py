"""A picture of what the victim sees: t-SNE of its features, and the 2-D map beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bench.markdown import markdown_table
from queen.bench.plots import png
from queen.bench.studies.base import Lab, Result, Study
from queen.bench.studies.quartiles import recipe
from queen.bundle.bundle import Bundle
from queen.core.geometry import nearest_centre
from queen.defenses.queen import fitted
from queen.errors import OptionError

NEIGHBOURS = 10
Points = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Features:
    """How many test and pool images; `perplexity` is that of t-SNE."""

    test: int = 500
    pool: int = 500
    perplexity: float = 30.0
    seed: int = 0


def measure(lab: Lab, asked: Features) -> dict[str, Any]:
    """Points of both pictures, rounded, and what they say in numbers."""
    protectee = lab.protectee
    if asked.test + asked.pool <= 3 * asked.perplexity or min(asked.test, asked.pool) < 1:
        raise OptionError(
            f"test and pool must hold more than three times the perplexity together, got {asked.test} and {asked.pool}"
        )
    bundle = fitted(protectee.victim, **recipe(lab))
    sets = {"test": protectee.test[0][: asked.test], "pool": _drawn(lab, asked)}
    seen = {name: look(bundle, x) for name, x in sets.items()}
    features = np.concatenate([found["features"] for found in seen.values()])
    count = len(seen["test"]["labels"])
    what = [vars(asked), list(sets)]
    with lab.show.bar("t-SNE", 1) as advance:
        embedded = lab.keep("features", what, lambda: _tsne(features, asked))
        advance()
    parts = np.split(np.asarray(embedded["points"]), [count])
    found = {}
    for (name, one), tsne in zip(seen.items(), parts, strict=True):
        found[name] = {
            "images": len(one["labels"]),
            "inside": float((one["far"] < 1).mean()),
            "mean_distance": float(one["far"].mean()),
            "nearest_centre_agrees": one["agrees"],
            "neighbours_alike": {"tsne": alike(tsne, one["labels"]), "map": alike(one["points"], one["labels"])},
            "labels": one["labels"].tolist(),
            "tsne": np.round(tsne, 2).tolist(),
            "map": np.round(one["points"], 4).tolist(),
        }
    discs = {"centres": bundle.geometry.centres.tolist(), "spreads": bundle.geometry.spreads.tolist()}
    return {"sets": found, "divergence": embedded["divergence"], "discs": discs}


def _drawn(lab: Lab, asked: Features) -> Tensor:
    pool = lab.protectee.pool
    return pool[torch.randperm(len(pool), generator=lab.generator(asked.seed, "query"))[: asked.pool].to(pool.device)]


@torch.inference_mode()
def look(bundle: Bundle, x: Tensor) -> dict[str, Any]:
    """Features (n, D), the victim's labels (n,), points of the map (n, 2) and distances in spreads (n,), as arrays."""
    passed = [bundle.split(part) for part in x.split(512)]  # type: ignore[no-untyped-call]
    features, logits = (torch.cat(parts).float() for parts in zip(*passed, strict=True))
    labels, points = logits.argmax(1), bundle.mapping(features)
    far = bundle.geometry.relative(points, labels).norm(dim=1)
    agrees = (nearest_centre(points, bundle.geometry) == labels).double().mean().item()
    arrays = {"features": features, "labels": labels, "points": points.double(), "far": far}
    return {name: found.cpu().numpy() for name, found in arrays.items()} | {"agrees": agrees}


def alike(points: Points, labels: NDArray[np.int64], neighbours: int = NEIGHBOURS) -> float:
    """The share of the nearest neighbours (of points (n, 2)) that have the same label."""
    from scipy.spatial import cKDTree  # noqa: PLC0415  (slow to import)

    _, near = cKDTree(points).query(points, k=min(neighbours + 1, len(points)))
    return float((labels[near[:, 1:]] == labels[:, None]).mean())


def _tsne(features: NDArray[np.float32], asked: Features) -> dict[str, Any]:
    from sklearn.manifold import TSNE  # noqa: PLC0415  (an extra)

    made = TSNE(perplexity=asked.perplexity, init="pca", random_state=asked.seed, n_jobs=1)
    points = made.fit_transform(features)
    return {"points": np.round(points.astype(np.float64), 3).tolist(), "divergence": float(made.kl_divergence_)}


def draw(result: Result) -> bytes:
    """Left t-SNE, right the map with its discs; colours are the victim's labels, grey crosses the attacker's images."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    from matplotlib.patches import Circle  # noqa: PLC0415  (an extra)

    from queen.plots import CLASS_COLOURS  # noqa: PLC0415  (needs matplotlib)

    figure = Figure(figsize=(12, 5.8), layout="constrained")
    axes = figure.subplots(1, 2)
    test, pool = result["sets"]["test"], result["sets"]["pool"]
    labels = np.asarray(test["labels"])
    for axis, kind in zip(axes, ("tsne", "map"), strict=True):
        axis.scatter(*np.asarray(pool[kind]).T, s=9, color="#222222", marker="x", linewidths=0.5, alpha=0.45)
        points = np.asarray(test[kind])
        for k in range(len(result["discs"]["spreads"])):
            colour = CLASS_COLOURS[k % len(CLASS_COLOURS)]
            axis.scatter(*points[labels == k].T, s=12, color=colour, alpha=0.85, linewidths=0, label=str(k))
        axis.set_aspect("equal", adjustable="datalim")
        axis.tick_params(labelsize=8, colors="#666666")
        axis.spines[["top", "right"]].set_visible(False)
    for k, (centre, spread) in enumerate(zip(*result["discs"].values(), strict=True)):
        colour = CLASS_COLOURS[k % len(CLASS_COLOURS)]
        axes[1].add_patch(Circle(centre, spread, fill=False, edgecolor=colour, linewidth=1.6))
    axes[0].set_title("t-SNE of the victim's features", loc="left", fontsize=11)
    axes[1].set_title("the 2-D map, with the discs of the classes", loc="left", fontsize=11)
    classes = len(result["discs"]["spreads"])
    if classes <= 20:
        axes[1].legend(title="test images,\nby class", fontsize=8, title_fontsize=8, loc="center left",
                       bbox_to_anchor=(1, 0.5), frameon=False)  # fmt: skip
    axes[0].annotate(
        "crosses: the attacker's images", (0.01, 0.01), xycoords="axes fraction", fontsize=9, color="#444444"
    )
    return png(figure)


def tell(result: Result) -> str:
    """Test and pool images in numbers."""
    header = ["images", "number", "inside their disc", "mean distance (spreads)", "nearest centre agrees"]
    header += ["neighbours alike, t-SNE", "neighbours alike, map"]
    lines = []
    for name, found in result["sets"].items():
        near = found["neighbours_alike"]
        shares = [f"{share:.1%}" for share in (found["nearest_centre_agrees"], near["tsne"], near["map"])]
        lines.append([name, str(found["images"]), f"{found['inside']:.1%}", f"{found['mean_distance']:.2f}", *shares])
    return markdown_table(header, lines) + (
        f"\nNeighbours alike: the share of the {NEIGHBOURS} nearest points that the victim gives the same label. "
        f"The divergence of t-SNE is {result['divergence']:.2f}.\n"
    )


STUDY = Study(Features, measure, draw, tell)
