"""A protectee as its spec describes it: images loaded and split, the victim trained, all on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.bench.datasets import Images, load_set
from queen.bench.datasets.load import find_root
from queen.bench.naming import as_json, digest
from queen.bench.parsing import SpecError
from queen.bench.spec import DEFAULT_NETWORK, ImageSet, ProtecteeSpec, Thief
from queen.bench.weights import load_weights, sha256_of, travelling_network
from queen.cache import Cache, code_version, fingerprint
from queen.defenses.base import Victim
from queen.training import Schedule, predict, train
from queen.zoo import build, seeded

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Protectee:
    """Who is attacked with what: the victim, images to try everybody on, and all that an attacker owns.

    `key` names the victim and all images, for caches; `weights` is the SHA-256 of the victim's, and `seconds` how long
    it was trained, if it was trained here.
    """

    name: str
    key: str
    weights: str
    victim: Victim
    test: Labelled
    pool: Tensor
    make_thief: Callable[[torch.Generator], nn.Module]
    thief_schedule: Schedule
    classes: int
    pool_labels: Tensor | None = None
    benign: Labelled | None = None
    sources: tuple[str, ...] = ()
    seconds: float | None = None

    def facts(self) -> dict[str, Any]:
        """What every result says about it."""
        x, y = self.test
        guess = predict(self.victim.model, x)
        return {
            "name": self.name,
            "weights": self.weights,
            "classes": self.classes,
            "accuracy": (guess == y).double().mean().item(),
            "chance": y.bincount().max().item() / len(y),
            "images": {"train": len(self.victim.train[0]), "test": len(x), "pool": len(self.pool)}
            | {"calibration": len(self.victim.calibration[0]) if self.victim.calibration else 0},
            "sources": list(self.sources),
        }


def make_protectee(spec: ProtecteeSpec, thief: Thief, cache: Cache, device: str, root: Path | None) -> Protectee:
    """Load and split the images; read the victim's weights where the spec names them, else train it or take it from the
    cache."""

    def load(wanted: ImageSet) -> Images:
        inner = wanted.size - 2 * wanted.margin if wanted.size else None
        folder = cache.folder / "sets"
        images = load_set(wanted.set, wanted.split, root=root, size=inner, channels=wanted.channels, cache=folder)
        count = len(images.y) if wanted.count is None else wanted.count
        if count > len(images.y):
            raise SpecError(f"set '{wanted.set}' has {len(images.y)} images ({wanted.split}), {count} are asked for")
        rows = torch.randperm(len(images.y), generator=torch.Generator().manual_seed(spec.seed))[:count]
        x = F.pad(images.x[rows], (wanted.margin,) * 4)
        return Images(x.to(device), images.y[rows].to(device), images.classes, images.source)

    owned = load(spec.data)
    sizes = [spec.train, spec.calibration, spec.benign, spec.test if isinstance(spec.test, int) else 0]
    if sum(sizes) > len(owned.y):
        raise SpecError(f"set '{spec.data.set}' has {len(owned.y)} images, {sum(sizes)} are asked for")
    rows = torch.arange(sum(sizes)).split_with_sizes(sizes)  # `load` has shuffled them
    train_set, calibration, benign, test = ((owned.x[part], owned.y[part]) for part in rows)
    if isinstance(spec.test, ImageSet):
        tests = load(spec.test)
        test = (tests.x, tests.y)
    pool = load(spec.pool) if isinstance(spec.pool, ImageSet) else Images(*benign, owned.classes, owned.source)
    outliers = load(spec.outliers) if spec.outliers else None
    used = [images for images in (owned, pool, outliers) if images]
    images = fingerprint(*(part for images in used for part in (images.x, images.y)), *test)
    classes = len(owned.classes)
    model, seconds = _load_or_train(spec, classes, train_set, outliers.x if outliers else None, cache, root)
    victim = Victim(
        model=model.to(device),
        train=train_set,
        make_network=maker(spec.network, classes, owned.x.shape[1]),
        schedule=spec.schedule,
        calibration=calibration if spec.calibration else None,
        outliers=outliers.x if outliers else None,
        cache=cache,
    )
    weights = sha256_of(victim.model)
    return Protectee(
        name=spec.name,
        key=f"protectee-{digest([as_json(spec), images, weights, device.partition(':')[0]])}",
        weights=weights,
        victim=victim,
        test=test,
        pool=pool.x,
        make_thief=maker(thief.network or spec.network, classes, owned.x.shape[1]),
        thief_schedule=thief.schedule,
        classes=classes,
        pool_labels=pool.y,
        benign=benign if spec.benign else None,
        sources=tuple(dict.fromkeys(images.source for images in used)),
        seconds=seconds,
    )


def maker(network: Mapping[str, Any], classes: int, channels: int) -> Callable[[torch.Generator], nn.Module]:
    """A function that builds an untrained network of `queen.zoo`."""
    arguments = {"name": DEFAULT_NETWORK, "classes": classes, "channels": channels, **network}

    def make(generator: torch.Generator) -> nn.Module:
        with seeded(generator):
            return build(**arguments)

    return make


def _load_or_train(
    spec: ProtecteeSpec, classes: int, data: Labelled, outliers: Tensor | None, cache: Cache, root: Path | None
) -> tuple[nn.Module, float | None]:
    """The victim, and how long it was trained; protectees that differ in the attacker's images alone share one.

    Other code would train another victim; to go on with one that older code trained, name its file as `weights`.
    """
    generator = torch.Generator().manual_seed(spec.seed)
    blank = maker(spec.network, classes, data[0].shape[1])(generator)
    if spec.weights is not None:
        return load_weights(blank, find_root(root) / spec.weights), None
    seconds: float | None = None

    def teach(network: nn.Module) -> nn.Module:
        nonlocal seconds
        start, weight = time.perf_counter(), spec.outlier_weight
        train(network, *data, spec.schedule, generator, outliers=outliers, outlier_weight=weight)
        seconds = round(time.perf_counter() - start, 3)
        return network

    recipe = [as_json(spec.network), as_json(spec.schedule), spec.outlier_weight, spec.seed, classes]
    recipe += [fingerprint(*data, *([] if outliers is None else [outliers])), data[0].device.type]
    recipe += [code_version("queen.training", "queen.zoo")]
    name = f"victim-{digest(recipe)}"
    victim = travelling_network(cache, name, blank, teach)
    return victim, cache.facts(f"{name}-seconds", lambda: seconds)
