"""A picture of the victim's features: t-SNE, and the 2-D map beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bench.render.markdown import markdown_table
from queen.bench.studies.base import Result, Study, StudyContext
from queen.bench.studies.needs import StudyNeeds
from queen.bundle.bundle import Bundle
from queen.core.geometry import nearest_centre
from queen.errors import OptionError
from queen.plots import png

NEIGHBOURS = 10
MARKERS: dict[str, dict[str, Any]] = {"train": {"s": 4, "marker": "."}, "pool": {"s": 9, "marker": "x"}}
WORDS = {"train": "black dots: training images", "pool": "crosses: the attacker's images"}
Points = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Features:
    """How many training, test and pool images are shown; `perplexity` is that of t-SNE."""

    train: int = 0
    test: int = 500
    pool: int = 500
    perplexity: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        counts = self.train, self.test, self.pool
        if sum(counts) <= 3 * self.perplexity or min(counts) < 0 or self.test < 1:
            raise OptionError(
                "train, test (at least 1) and pool must hold more than three times the perplexity together, "
                f"got {self.train}, {self.test} and {self.pool}"
            )


def measure(context: StudyContext, parameters: Features) -> dict[str, Any]:
    """The points of both pictures, rounded, and figures about them."""
    bundle = context.fit_bundle()
    protectee = context.protectee
    images = {
        "train": protectee.victim.train[0][: parameters.train],
        "test": protectee.test[0][: parameters.test],
        "pool": _draw_pool(context, parameters),
    }
    images = {name: x for name, x in images.items() if len(x)}
    projections = {name: project(bundle, x) for name, x in images.items()}
    features = np.concatenate([projection["features"] for projection in projections.values()])
    with context.show.bar("t-SNE", 1) as advance:
        embedding = context.cached("features", [vars(parameters), list(images)], lambda: _tsne(features, parameters))
        advance()
    ends = np.cumsum([len(x) for x in images.values()])[:-1]
    embedded = np.split(np.asarray(embedding["points"]), ends)
    sets = {
        name: _describe(projection, tsne)
        for (name, projection), tsne in zip(projections.items(), embedded, strict=True)
    }
    discs = {"centres": bundle.geometry.centres.tolist(), "spreads": bundle.geometry.spreads.tolist()}
    return {"sets": sets, "divergence": embedding["divergence"], "discs": discs}


def _draw_pool(context: StudyContext, parameters: Features) -> Tensor:
    """Images of the pool, at random."""
    pool = context.protectee.pool
    order = torch.randperm(len(pool), generator=context.generator(parameters.seed, "query"))
    return pool[order[: parameters.pool].to(pool.device)]


@torch.inference_mode()
def project(bundle: Bundle, x: Tensor) -> dict[str, Any]:
    """Arrays for images (n, ...): features (n, D), the victim's labels (n,), points on the map (n, 2), distances (n,).

    Distances are from the centre of the image's class, in spreads. "agrees" is the share of images whose nearest centre
    is that of their label.
    """
    outputs = [bundle.split(part) for part in x.split(512)]  # type: ignore[no-untyped-call]
    features, logits = (torch.cat(parts).float() for parts in zip(*outputs, strict=True))
    labels, points = logits.argmax(1), bundle.mapping(features)
    distances = bundle.geometry.relative(points, labels).norm(dim=1)
    agrees = (nearest_centre(points, bundle.geometry) == labels).double().mean().item()
    tensors = {"features": features, "labels": labels, "points": points.double(), "distances": distances}
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()} | {"agrees": agrees}


def _describe(projection: Result, tsne: Points) -> dict[str, Any]:
    labels, points, distances = (projection[name] for name in ("labels", "points", "distances"))
    return {
        "images": len(labels),
        "inside": float((distances < 1).mean()),
        "mean_distance": float(distances.mean()),
        "nearest_centre_agrees": projection["agrees"],
        "neighbours_alike": {"tsne": neighbour_agreement(tsne, labels), "map": neighbour_agreement(points, labels)},
        "labels": labels.tolist(),
        "tsne": np.round(tsne, 2).tolist(),
        "map": np.round(points, 4).tolist(),
    }


def neighbour_agreement(points: Points, labels: NDArray[np.int64], neighbours: int = NEIGHBOURS) -> float:
    """The share of the nearest neighbours of points (n, 2) that have the same label."""
    from scipy.spatial import cKDTree  # noqa: PLC0415  (slow to import)

    _, near = cKDTree(points).query(points, k=min(neighbours + 1, len(points)))
    return float((labels[near[:, 1:]] == labels[:, None]).mean())


def _tsne(features: NDArray[np.float32], parameters: Features) -> dict[str, Any]:
    from sklearn.manifold import TSNE  # noqa: PLC0415  (an extra)

    tsne = TSNE(perplexity=parameters.perplexity, init="pca", random_state=parameters.seed, n_jobs=1)
    points = tsne.fit_transform(features)
    return {"points": np.round(points.astype(np.float64), 3).tolist(), "divergence": float(tsne.kl_divergence_)}


def draw(result: Result) -> bytes:
    """Left t-SNE, right the map with its discs; colours are the victim's labels of test images, black dots training
    images, grey crosses the attacker's."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    from matplotlib.patches import Circle  # noqa: PLC0415  (an extra)

    from queen.plots import CLASS_COLOURS  # noqa: PLC0415  (needs matplotlib)

    figure = Figure(figsize=(12, 5.8), layout="constrained")
    axes = figure.subplots(1, 2)
    sets, test = result["sets"], result["sets"]["test"]
    labels = np.asarray(test["labels"])
    for axis, kind in zip(axes, ("tsne", "map"), strict=True):
        for name, marker in MARKERS.items():
            if name in sets:
                axis.scatter(*np.asarray(sets[name][kind]).T, color="#222222", linewidths=0.5, alpha=0.45, **marker)
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
    words = ", ".join(text for name, text in WORDS.items() if name in sets)
    axes[0].annotate(words, (0.01, 0.01), xycoords="axes fraction", fontsize=9, color="#444444")
    return png(figure)


def to_markdown(result: Result) -> str:
    """Test and pool images in numbers."""
    header = ["images", "number", "inside their disc", "mean distance (spreads)", "nearest centre agrees"]
    header += ["neighbours alike, t-SNE", "neighbours alike, map"]
    lines = []
    for name, figures in result["sets"].items():
        near, distance = figures["neighbours_alike"], f"{figures['mean_distance']:.2f}"
        shares = [f"{share:.1%}" for share in (figures["nearest_centre_agrees"], near["tsne"], near["map"])]
        lines.append([name, str(figures["images"]), f"{figures['inside']:.1%}", distance, *shares])
    return markdown_table(header, lines) + (
        f"\nNeighbours alike: the share of the {NEIGHBOURS} nearest points that the victim gives the same label. "
        f"The divergence of t-SNE is {result['divergence']:.2f}.\n"
    )


STUDY = Study(Features, measure, draw, to_markdown, needs=lambda _, __: StudyNeeds())
