"""Whether images near the centre of their class teach a thief more than those at the edge."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from queen.attacks import ATTACKS
from queen.attacks.base import Knowledge, Transcript
from queen.bench.protectee import Labelled
from queen.bench.render.markdown import markdown_table
from queen.bench.spec import Spec
from queen.bench.studies.base import Result, Study, StudyContext
from queen.bench.studies.formatting import percent
from queen.bench.studies.needs import OWN_KIND, StudyNeeds
from queen.bundle.bundle import Bundle
from queen.cache import fingerprint
from queen.defenses.base import nearest
from queen.errors import OptionError
from queen.plots import png
from queen.training import predict

PARTS = 4
NAMES = ("central", "second", "third", "peripheral")
SOURCE_WORDS = {"own_kind": "other images", "train": "training images"}
DISTANCES = ("map", "feature")
TRUE_LABELS = "true_labels"


@dataclass(frozen=True, kw_only=True)
class Quartiles:
    """Images of the victim's kind (its training images, as in the paper, or others), ranked within their class.

    `distances`: on the plane, in spreads of the class ("map"), or between features ("feature"). Every thief trains on
    the honest answers to `per_class` images of each class, drawn anew for every seed. With `true_labels` there are also
    networks that learn the true labels of such images, as in the paper; they are ranked within their true class.
    """

    sources: tuple[str, ...] = tuple(SOURCE_WORDS)
    distances: tuple[str, ...] = ("map",)
    attacks: tuple[str, ...] = ("direct", "label_only")
    true_labels: bool = False
    per_class: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        for names, known in ((self.sources, SOURCE_WORDS), (self.distances, DISTANCES)):
            for name in names:
                if name not in known:
                    raise OptionError(f"quartiles: '{name}' is not known{nearest(name, dict.fromkeys(known))}")


def measure(context: StudyContext, parameters: Quartiles) -> dict[str, Any]:
    """One row per source, distance and attack: the accuracy of each quartile's thieves, one per seed."""
    bundle, classes = context.fit_bundle(), context.protectee.classes
    attacks = (*parameters.attacks, *([TRUE_LABELS] if parameters.true_labels else []))
    rows: list[dict[str, Any]] = []
    for source in parameters.sources:
        x, y = context.protectee.victim.train if source == "train" else context.own_kind_images()
        told = predict(context.protectee.victim.model, x)
        for distance, attack in context.each(f"quartiles, {source}", product(parameters.distances, attacks)):
            labels = y if attack == TRUE_LABELS else told
            distances = measure_distances(bundle, x, labels, distance)
            quartiles = split_quartiles(distances, labels, classes)
            accuracies = [
                [_steal(context, parameters, (x, labels), members, attack, seed) for seed in parameters.seeds]
                for members in quartiles
            ]
            rows.append({"source": source, "distance": distance, "attack": attack, "accuracy": accuracies})
            rows[-1]["mean_distance"] = [distances[members].mean().item() for members in quartiles]
            rows[-1]["victim_right"] = [(told == y)[members].double().mean().item() for members in quartiles]
    return {"rows": rows, "images": parameters.per_class * classes}


@torch.inference_mode()
def measure_distances(bundle: Bundle, x: Tensor, labels: Tensor, distance: str) -> Tensor:
    """How far images (n, ...) are from the centres of classes (n,): on the map in spreads, or between features."""
    features = torch.cat([bundle.split(part)[0] for part in x.split(512)])  # type: ignore[no-untyped-call]
    if distance == "map":
        distances: Tensor = bundle.geometry.relative(bundle.mapping(features), labels).norm(dim=1)
    else:
        distances = (features - bundle.geometry.feature_centres[labels]).norm(dim=1)
    return distances


def split_quartiles(distances: Tensor, labels: Tensor, classes: int) -> list[Tensor]:
    """Rows of the four quartiles, nearest first, class by class: sizes of a class differ by one at most."""
    parts: list[list[Tensor]] = [[] for _ in range(PARTS)]
    for k in range(classes):
        rows = (labels == k).nonzero().flatten()
        nearest_first = rows[distances[rows].argsort(stable=True)]
        for part, chosen in zip(parts, nearest_first.tensor_split(PARTS), strict=True):
            part.append(chosen)
    return [torch.cat(part) for part in parts]


def sample(rows: Tensor, labels: Tensor, classes: int, per_class: int, generator: torch.Generator) -> Tensor:
    """`per_class` of the rows of every class, at random."""
    drawn = []
    for k in range(classes):
        own = rows[labels[rows] == k]
        if len(own) < per_class:
            raise OptionError(f"per_class is {per_class}, but a quartile has only {len(own)} images of class {k}")
        drawn.append(own[torch.randperm(len(own), generator=generator)[:per_class].to(own.device)])
    return torch.cat(drawn)


def _steal(
    context: StudyContext, parameters: Quartiles, images: Labelled, rows: Tensor, attack: str, seed: int
) -> float:
    """The accuracy of a thief trained on honest answers, or true labels, of a sample of the rows."""
    protectee = context.protectee
    x, labels = images
    chosen = sample(rows, labels, protectee.classes, parameters.per_class, context.generator(seed, "quartile"))
    learns_truth = attack == TRUE_LABELS
    answers = one_hot(labels[chosen], protectee.classes) if learns_truth else protectee.victim.clean(x[chosen])
    transcript = Transcript(x[chosen], answers.float())
    knowledge = Knowledge(
        classes=protectee.classes,
        pool=transcript.x,
        make_thief=protectee.make_thief,
        schedule=protectee.thief_schedule,
        sizes=context.spec.sizes,
        clean=protectee.victim.clean,
        key=f"{protectee.key}-quartile-{seed}",
    )

    def measure_thief() -> float:
        thief = ATTACKS["direct" if learns_truth else attack].steal(
            transcript, knowledge, context.generator(seed, "thief")
        )
        return (predict(thief, protectee.test[0]) == protectee.test[1]).double().mean().item()

    depends_on = [attack, seed, fingerprint(transcript.x, transcript.answers)]
    return float(context.cached("quartile", depends_on, measure_thief))


def draw(result: Result) -> bytes:
    """Accuracy by quartile, one dot per seed."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = ["#c8102e", "#e08a1e", "#1f5fbf", "#17a2b8", "#1b7f4d", "#7a5195", "#7a7a85", "#111111"]
    rows = result["rows"]
    for place, row in enumerate(rows):
        colour = colours[place % len(colours)]
        shift = 0.05 * (place - (len(rows) - 1) / 2)
        at = [part + shift for part in range(PARTS)]
        means = [100 * statistics.mean(runs) for runs in row["accuracy"]]
        axis.plot(at, means, "o-", color=colour, label=_label(row))
        for spot, runs in zip(at, row["accuracy"], strict=True):
            axis.scatter([spot] * len(runs), [100 * run for run in runs], color=colour, s=14, alpha=0.4, linewidths=0)
    axis.set_xticks(range(PARTS), [f"{name}\nquartile" for name in NAMES])
    axis.set_ylabel("accuracy of the thief (%)")
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return png(figure)


def _label(row: Result) -> str:
    return f"{SOURCE_WORDS[row['source']]}, {row['attack'].replace('_', ' ')}" + (
        "" if row["distance"] == "map" else ", feature distance"
    )


def to_markdown(result: Result) -> str:
    """The table, and how the peripheral quartile compares with the central one."""
    parameters = result["config"]["parameters"]
    lines, gaps = [], []
    for row in result["rows"]:
        lines.append([_label(row), row["distance"], *(percent(*runs) for runs in row["accuracy"])])
        means = [100 * statistics.mean(runs) for runs in row["accuracy"]]
        gaps.append(
            f"- {_label(row)}: the thief of the peripheral quartile has {means[-1] - means[0]:+.1f} points against "
            "that of the central one.\n"
        )
    for source, distance in product(parameters["sources"], parameters["distances"]):
        row = next(
            r for r in result["rows"] if (r["source"], r["distance"]) == (source, distance)
        )  # of its first thief
        shares = [percent(share) for share in row["victim_right"]]
        lines.append([f"{SOURCE_WORDS[source]}: the victim itself is right", distance, *shares])
    table = markdown_table(["images and thief", "distance", *NAMES], lines)
    return f"{table}\n{result['images']} images a thief, seeds {parameters['seeds']}.\n\n{''.join(gaps)}"


def _needs(_: Spec, parameters: Quartiles) -> StudyNeeds:
    return StudyNeeds(attacks=parameters.attacks, pools=[name for name in parameters.sources if name == OWN_KIND])


STUDY = Study(Quartiles, measure, draw, to_markdown, _needs)
