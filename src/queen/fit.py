"""From a trained model and its data to a guard: features, map, discs, shadows, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from queen.bundle import Bundle, Calibration, Probe, with_options
from queen.core import inputs
from queen.core.geometry import Geometry, check_labels, check_range, measure, nearest_centre
from queen.core.mapping import MappingNet, MapRecipe, train_map
from queen.core.shadows import Shadows, disjoint_subsets, train_heads, train_networks
from queen.core.split import Split, find_split
from queen.data import Data, batches
from queen.guard import Guard
from queen.ledger import Ledger
from queen.policy import find_policy
from queen.progress import Progress
from queen.report import Benign, Report, mean_square_sensitivity
from queen.types import (
    DtypeError,
    EmptyBatchError,
    Inputs,
    Limits,
    LimitsError,
    MapError,
    NotFiniteError,
    OptionError,
)
from queen.zoo import Recipe, recipe_of

ShadowKind = Literal["head", "network"]


@dataclass(frozen=True, kw_only=True)
class ShadowRecipe:
    """How the simulated pirates are made; see `core/shadows.py` for the two kinds."""

    kind: ShadowKind = "head"
    count: int = 10
    draw: int = 5
    per_class: int = 500
    networks: Sequence[Recipe] = ()
    epochs: int = 5
    steps: int = 5


def protect(
    model: nn.Module,
    train_data: Data,
    *,
    calibration: Data | None = None,
    head: str | None = None,
    policy: str = "paper",
    observe: bool = False,
    limits: Limits | None = None,
    absolute_radius: float | None = None,
    keep_label: bool = False,
    mapping: MapRecipe | None = None,
    shadows: ShadowRecipe | ShadowKind = "head",
    min_agreement: float = 0.5,
    factory: str | None = None,
    factory_args: Mapping[str, Any] | None = None,
    class_names: Sequence[str] | None = None,
    pixel_mean: Sequence[float] | None = None,
    pixel_std: Sequence[float] | None = None,
    ledger: Ledger | None = None,
    secret: bytes | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Guard:
    """Fit QUEEN around a trained classifier and return a guard that answers per client.

    `train_data` and `calibration` are (x, y) tensors, a Dataset or a DataLoader, un-augmented; calibration images must
    not have trained the model. `head` names the last layer if it is not the last Linear. `factory`
    ("package.module:function") with `factory_args` lets a saved bundle rebuild the model by itself; networks of
    `queen.zoo` need none. Runs on the device the model is on, deterministic given `seed`.
    """
    find_policy(policy)
    if not isinstance(model, nn.Module):
        raise DtypeError(f"expected the model as a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(seed, int):
        raise OptionError(f"seed must be an integer, got {seed!r}")
    recipe = _shadow_recipe(shadows)
    generator = torch.Generator().manual_seed(seed)
    with Progress(progress) as show:
        sample, device = _sample(train_data, model)
        split = find_split(model, sample, head)
        with show.timed("features"):
            keep = recipe.kind == "network"
            seen = _features(split, train_data, sample, device, show, "features", keep_inputs=keep)
        classes = seen.logits.shape[1]
        check_labels(seen.labels, classes)
        with show.timed("map"):
            net = _fit_map(seen, mapping or MapRecipe(), generator, show)
        points = net(seen.features)
        geometry = measure(seen.features, points, seen.labels, classes)
        agreement = _agreement(points, geometry, seen, min_agreement)
        warnings: list[str] = []
        with show.timed("shadows"):
            made = _fit_shadows(seen, classes, recipe, generator, show, warnings)
        chosen = _limits(limits, absolute_radius, geometry)
        held_out = None
        if calibration is not None:
            with show.timed("calibration"):
                held_out = _calibrate(split, net, geometry, calibration, sample, device, show)
        train = Calibration(*_on_discs(net, geometry, seen)).benign
        report = _report(seen, train, geometry, agreement, recipe, made, held_out)
        report.warnings, report.seconds = warnings, show.seconds
        bundle = Bundle(
            split=split,
            mapping=net,
            geometry=geometry,
            shadows=made,
            probe=_probe(split, sample, generator),
            policy=policy,
            observe=observe,
            keep_label=keep_label,
            draw=recipe.draw,
            recipe=Recipe(factory, dict(factory_args or {})) if factory else recipe_of(model),
            class_names=tuple(class_names) if class_names else None,
            pixel_mean=tuple(pixel_mean) if pixel_mean else None,
            pixel_std=tuple(pixel_std) if pixel_std else None,
            calibration=held_out,
            report=vars(report),
        )
        bundle = with_options(bundle, limits=chosen)
    show.say(Report(**bundle.report).lines())
    return Guard(bundle, ledger=ledger, secret=secret)


def _shadow_recipe(shadows: ShadowRecipe | ShadowKind) -> ShadowRecipe:
    recipe = ShadowRecipe(kind=shadows) if isinstance(shadows, str) else shadows
    if recipe.kind not in ("head", "network"):
        raise OptionError(f"no shadow kind '{recipe.kind}'; known: head, network")
    if min(recipe.per_class, recipe.epochs, recipe.steps) < 1:
        raise OptionError("per_class, epochs and steps of the shadows must be at least 1")
    if not 1 <= recipe.draw <= recipe.count:
        raise OptionError(f"draw must lie between 1 and the {recipe.count} shadows, got {recipe.draw}")
    return recipe


@dataclass
class _Seen:
    """What one pass over the data gave: features (n, D), logits (n, K), labels (n,), and maybe all inputs."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    inputs: Tensor | None


def _sample(data: Data, model: nn.Module) -> tuple[Inputs, torch.device]:
    """A few rows as the model wants them, on its device, to look at the network with and to compare the rest to."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise OptionError("the model has no parameters: give the trained network")

    def as_wanted(t: Tensor) -> Tensor:
        return t.to(parameter.dtype) if t.is_floating_point() else t

    for x, _ in batches(data):
        few = inputs.take(x, slice(0, 4))
        like = {k: as_wanted(t) for k, t in few.items()} if isinstance(few, Mapping) else as_wanted(few)
        return inputs.to(inputs.check(few, like), parameter.device), parameter.device
    raise EmptyBatchError("the data holds no images")


def _features(
    split: Split,
    data: Data,
    like: Inputs,
    device: torch.device,
    show: Progress,
    name: str,
    *,
    keep_inputs: bool = False,
) -> _Seen:
    """One pass over the data, un-augmented and in order; every batch must be like the sample."""
    features, logits, labels, kept = [], [], [], []
    with torch.inference_mode():
        for raw, y in show.each(name, batches(data)):
            x = inputs.to(inputs.check(raw, like), device)
            if y.ndim != 1 or y.is_floating_point():
                raise DtypeError(
                    f"expected integer class labels of shape (n,), got {y.dtype} of shape {tuple(y.shape)}"
                )
            u, found = split(x)
            features.append(u.float())
            logits.append(found.float())
            labels.append(y.to(device, torch.int64))
            if keep_inputs:
                if isinstance(x, Mapping):
                    raise OptionError("network shadows need one input tensor; use shadows='head' for this model")
                kept.append(x)
    if not labels:
        raise EmptyBatchError(f"the data holds no images ({name})")
    # Inference tensors may not enter autograd, and the map and the shadows are trained on these: hence clones.
    u, found, y = (torch.cat(parts).clone() for parts in (features, logits, labels))
    if not (u.isfinite().all() and found.isfinite().all()):
        raise NotFiniteError("the model gives NaN or infinity for some of the images")
    return _Seen(u, found, y, torch.cat(kept).clone() if kept else None)


def _fit_map(seen: _Seen, recipe: MapRecipe, generator: torch.Generator, show: Progress) -> MappingNet:
    if recipe.loss not in ("out", "in"):
        raise OptionError(f"no contrastive loss '{recipe.loss}'; known: out, in")
    with show.bar("map", recipe.epochs) as advance:
        return train_map(seen.features, seen.labels, recipe, generator, advance)


def _agreement(points: Tensor, geometry: Geometry, seen: _Seen, floor: float) -> float:
    """The map's health: how often the nearest centre is the classifier's own answer."""
    agreement = (nearest_centre(points, geometry) == seen.logits.argmax(1)).double().mean().item()
    if agreement < floor:
        raise MapError(
            f"the 2-D map agrees with the model on {agreement:.1%} of the training images, at least {floor:.0%} are "
            "needed: train it longer (mapping=MapRecipe(epochs=...)), with another seed, or lower min_agreement"
        )
    return agreement


def _fit_shadows(
    seen: _Seen,
    classes: int,
    recipe: ShadowRecipe,
    generator: torch.Generator,
    show: Progress,
    warnings: list[str],
) -> Shadows:
    subsets, disjoint = disjoint_subsets(seen.labels, classes, recipe.count, recipe.per_class, generator)
    if not disjoint:
        warnings.append(f"some class has fewer than {recipe.count} images, so shadow subsets overlap (bootstrap)")
    if recipe.kind == "head" or seen.inputs is None:
        with show.bar("shadows", 1) as advance:
            heads = train_heads(seen.features, seen.labels, classes, subsets, generator, steps=recipe.steps)
            advance()
        return heads
    networks = recipe.networks or _default_networks(seen.inputs, classes)
    with show.bar("shadows", recipe.count) as advance:
        return train_networks(
            seen.inputs, seen.labels, subsets, networks, generator, epochs=recipe.epochs, on_model=advance
        )


def _default_networks(x: Tensor, classes: int) -> list[Recipe]:
    """Two architectures in turn, for images; anything else must be named."""
    if x.ndim != 4:
        raise OptionError("network shadows for inputs that are not images need ShadowRecipe(networks=[Recipe(...)])")
    names = ("vgg11_bn", "resnet18") if x.shape[-1] >= 32 else ("small_cnn", "vgg11_bn")
    return [Recipe("queen.zoo:build", {"name": n, "classes": classes, "channels": x.shape[1]}) for n in names]


def _calibrate(
    split: Split, net: MappingNet, geometry: Geometry, data: Data, like: Inputs, device: torch.device, show: Progress
) -> Calibration:
    seen = _features(split, data, like, device, show, "calibration")
    check_range(seen.labels, geometry.classes)
    return Calibration(*_on_discs(net, geometry, seen))


def _on_discs(net: MappingNet, geometry: Geometry, seen: _Seen) -> tuple[Tensor, Tensor]:
    """Predicted labels (n,) and points relative to their discs (n, 2)."""
    labels = seen.logits.argmax(1)
    return labels, geometry.relative(net(seen.features), labels)


def _limits(limits: Limits | None, absolute_radius: float | None, geometry: Geometry) -> Limits:
    """Relative limits; an absolute radius r becomes r / d^k for every class."""
    if absolute_radius is None:
        return limits or Limits()
    if limits is not None:
        raise LimitsError("give either limits or absolute_radius, not both")
    absolute = Limits(radius=absolute_radius).radius  # says so if it is no number
    return Limits(radius=tuple(absolute / d for d in geometry.spreads.tolist()))


def _report(
    seen: _Seen,
    train: Benign,
    geometry: Geometry,
    agreement: float,
    recipe: ShadowRecipe,
    shadows: Shadows,
    held_out: Calibration | None,
) -> Report:
    accuracy, confidence = _try_shadows(shadows, seen)
    return Report(
        classes=geometry.classes,
        training_images=len(seen.labels),
        agreement=agreement,
        outside=train.outside,
        spreads=geometry.spreads.tolist(),
        mean_square_sensitivity=mean_square_sensitivity(train),
        shadow_kind=f"{len(shadows)} {recipe.kind}",
        shadow_accuracy=accuracy,
        shadow_confidence=confidence,
        calibration_images=0 if held_out is None else len(held_out.labels),
        calibration_outside=None if held_out is None else held_out.benign.outside,
    )


@torch.inference_mode()
def _try_shadows(shadows: Shadows, seen: _Seen, rows: int = 512) -> tuple[float, float]:
    """Accuracy and mean confidence of the averaged shadows on some training images."""
    pick = torch.linspace(0, len(seen.labels) - 1, min(rows, len(seen.labels))).long().to(seen.labels.device)
    x = seen.features[pick] if seen.inputs is None else seen.inputs[pick]
    confidence, guess = shadows.probabilities(seen.features[pick], x).mean(1).max(1)
    return (guess == seen.labels[pick]).double().mean().item(), confidence.double().mean().item()


@torch.inference_mode()
def _probe(split: Split, sample: Inputs, generator: torch.Generator) -> Probe:
    """Random rows shaped like the data (no training image is stored) and the model's features and logits for them."""
    device = next(split.model.parameters()).device

    def noise(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            high = int(t.max())
            if high <= 1:  # a mask or a type: random ones could hide everything
                return torch.full_like(t, high)
            return torch.randint(0, high + 1, t.shape, generator=generator).to(t.dtype)  # token ids that surely exist
        scaled = torch.randn(t.shape, generator=generator) * t.float().std(correction=0)
        return (scaled + t.float().mean()).to(t.dtype)

    x = {k: noise(t.cpu()) for k, t in sample.items()} if isinstance(sample, Mapping) else noise(sample.cpu())
    placed = inputs.to(x, device)
    features, logits = split(placed)
    return Probe(placed, features.float(), logits.float())
