"""A protectee as its spec describes it: images loaded and split, the victim trained, all on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.bench.datasets import Images, load_set
from queen.bench.datasets.load import find_root
from queen.bench.naming import as_json, digest
from queen.bench.parsing import SpecError
from queen.bench.spec import DEFAULT_NETWORK, ImageSet, ProtecteeSpec, Start, Thief
from queen.bench.weights import Weights, load_weights, sha256_of, travelling_network
from queen.cache import Cache, code_version, fingerprint
from queen.defenses.base import Victim
from queen.training import Schedule, predict, train
from queen.zoo import build, seeded

Labelled = tuple[Tensor, Tensor]
PUBLIC_SEED = 0  # of weights that everybody starts from, whatever the victim's seed


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

    @property
    def chance(self) -> float:
        """The share of the test images that a constant guess gets right."""
        labels = self.test[1]
        return labels.bincount().max().item() / len(labels)

    def facts(self) -> dict[str, Any]:
        """What every result says about it."""
        x, y = self.test
        guess = predict(self.victim.model, x)
        return {
            "name": self.name,
            "weights": self.weights,
            "classes": self.classes,
            "accuracy": (guess == y).double().mean().item(),
            "chance": self.chance,
            "images": {"train": len(self.victim.train[0]), "test": len(x), "pool": len(self.pool)}
            | {"calibration": len(self.victim.calibration[0]) if self.victim.calibration else 0},
            "sources": list(self.sources),
        }


def make_protectee(spec: ProtecteeSpec, thief: Thief, cache: Cache, device: str, root: Path | None) -> Protectee:
    """Load and split the images; read the victim's weights where the spec names them, else train it or take it from the
    cache."""
    load = partial(_load, seed=spec.seed, folder=cache.folder / "sets", device=device, root=root)
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
    before = load(spec.start.data, seed=PUBLIC_SEED) if spec.start else None
    used = [images for images in (owned, pool, outliers, before) if images]
    images = fingerprint(*(part for images in used for part in (images.x, images.y)), *test)
    classes, channels = len(owned.classes), owned.x.shape[1]

    def start_of(network: Mapping[str, Any]) -> Weights:
        return learn_start(spec.start, before, network, cache) if spec.start and before else {}

    blank = maker(spec.network, classes, channels, start_of(spec.network))
    thiefs = thief.network or spec.network
    model, seconds = _load_or_train(spec, classes, blank, train_set, outliers.x if outliers else None, cache, root)
    victim = Victim(
        model=model.to(device),
        train=train_set,
        make_network=maker(spec.network, classes, channels),
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
        make_thief=maker(thiefs, classes, channels, start_of(thiefs)),
        thief_schedule=thief.schedule,
        classes=classes,
        pool_labels=pool.y,
        benign=benign if spec.benign else None,
        sources=tuple(dict.fromkeys(images.source for images in used)),
        seconds=seconds,
    )


def _load(wanted: ImageSet, *, seed: int, folder: Path, device: str, root: Path | None) -> Images:
    """The images of a set, shuffled by the seed, on the device."""
    inner = wanted.size - 2 * wanted.margin if wanted.size else None
    count, channels = wanted.count, wanted.channels
    images = load_set(wanted.set, wanted.split, root=root, size=inner, channels=channels, count=count, cache=folder)
    if count is not None and count > len(images.y):
        raise SpecError(f"set '{wanted.set}' has {len(images.y)} images ({wanted.split}), {count} are asked for")
    rows = torch.randperm(len(images.y), generator=torch.Generator().manual_seed(seed))
    x = F.pad(images.x[rows], (wanted.margin,) * 4)
    return Images(x.to(device), images.y[rows].to(device), images.classes, images.source)


def maker(
    network: Mapping[str, Any], classes: int, channels: int, start: Weights | None = None
) -> Callable[[torch.Generator], nn.Module]:
    """A function that builds a network of `queen.zoo`, untrained but for the weights that it starts from."""
    arguments = {"name": DEFAULT_NETWORK, "classes": classes, "channels": channels, **network}

    def make(generator: torch.Generator) -> nn.Module:
        with seeded(generator):
            made = build(**arguments)
        made.load_state_dict({**made.state_dict(), **(start or {})})
        return made

    return make


def learn_start(start: Start, images: Images, network: Mapping[str, Any], cache: Cache) -> Weights:
    """All weights but the head's of such a network, trained on these images: the same for everybody and every seed."""
    generator = torch.Generator().manual_seed(PUBLIC_SEED)
    blank = maker(network, len(images.classes), images.x.shape[1])(generator)
    recipe = [as_json(network), as_json(start.schedule), fingerprint(images.x, images.y), images.x.device.type]
    recipe += [code_version("queen.training", "queen.zoo")]
    learned = travelling_network(
        cache,
        f"start-{digest(recipe)}",
        blank,
        lambda untrained: train(untrained, images.x, images.y, start.schedule, generator),
    )
    *_, head = (name for name, layer in learned.named_modules() if isinstance(layer, nn.Linear))
    return {key: value for key, value in learned.state_dict().items() if not key.startswith(f"{head}.")}


def _load_or_train(
    spec: ProtecteeSpec,
    classes: int,
    make: Callable[[torch.Generator], nn.Module],
    data: Labelled,
    outliers: Tensor | None,
    cache: Cache,
    root: Path | None,
) -> tuple[nn.Module, float | None]:
    """The victim, and how long it was trained; protectees that differ in the attacker's images alone share one.

    Other code would train another victim; to go on with one that older code trained, name its file as `weights`.
    """
    generator = torch.Generator().manual_seed(spec.seed)
    blank = make(generator)
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
    recipe += [sha256_of(blank)] if spec.start else []
    name = f"victim-{digest(recipe)}"
    victim = travelling_network(cache, name, blank, teach)
    return victim, cache.facts(f"{name}-seconds", lambda: seconds)
