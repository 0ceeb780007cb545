"""From a trained model and its data to a guard: features, map, discs, shadows, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal
from warnings import warn

import torch
from torch import Tensor

from queen.bundle.bundle import NO_CALIBRATION, Bundle
from queen.bundle.report import Benign, Report, mean_square_sensitivity
from queen.core.geometry import Geometry, check_labels, measure, nearest_centre
from queen.core.mapping import MappingNet, MapRecipe, train_map
from queen.core.shadows import Shadows
from queen.core.split import Split, find_split, is_sigmoid
from queen.errors import (
    CalibrationError,
    LimitsError,
    MapError,
    OptionError,
    ProtectionWarning,
)
from queen.fit.calibrate import calibrate_bundle
from queen.fit.check_data import LEAST_AGREEMENT, find_shared
from queen.fit.data import Data, Images
from queen.fit.entrance import (
    describe,
    make_probe,
    names_for,
    numbered,
    ready,
    recipe_for,
    settings_for,
    take_sample,
)
from queen.fit.features import ModelOutputs, extract_features
from queen.fit.price import CopyOptions
from queen.fit.shadows import ShadowKind, ShadowRecipe, fit_shadows, shadow_recipe, try_shadows
from queen.guard import Guard
from queen.ledger import Ledger
from queen.models import as_module
from queen.options import Limits, Sentinel, check_sentinel, default_limits
from queen.policy import find_policy
from queen.price.measure import Pricing
from queen.price.stored import bundle_price_lines
from queen.progress import Progress
from queen.sentinel.scores import Reference, make_reference
from queen.training import one_thread
from queen.types import Inputs

# Images: such batches gain next to nothing by several threads, and lose very much where other programs use the cores:
# each of very many small steps then waits for a thread that does not run.
SMALL_BATCH = 512

PAPER_ONLY = (
    "there are no calibration images, so the policy is 'paper', which accuses nobody: give images that did not train "
    "the model (calibration=x, --calibration FILE) for the policy 'sentinel', or choose 'paper' yourself (policy, "
    "--policy)"
)
SIGMOIDS = (
    "the model answers with numbers from 0 to 1 that do not add up to 1, as sigmoids do: the guard takes them for "
    "logits, so clients get their softmax, which is nearly even; return what comes before the sigmoids"
)
FOR_LIFE = (
    "the extra answers renew, but a class that a client has used up stays so for ever: give the threshold a period too "
    '("0.2/day"), or take the sentinel\'s own limits, under which no class is ever spent, with other answers: '
    'dataclasses.replace(queen.options.SENTINEL_LIMITS, extra_answers="2000/day")'
)


def protect(
    model: Any,
    train_data: Data,
    *,
    calibration: Images | Literal["train"] | None = None,
    foreign: Images | None = None,
    weak: bool = False,
    head: str | None = None,
    policy: str | None = None,
    alpha: float | None = None,
    sentinel: Sentinel | None = None,
    observe: bool = False,
    limits: Limits | None = None,
    absolute_radius: float | None = None,
    max_copy: float | None = None,
    price: bool | Pricing = False,
    keep_label: bool = False,
    mapping: MapRecipe | None = None,
    shadows: ShadowRecipe | ShadowKind = "head",
    min_agreement: float = LEAST_AGREEMENT,
    input_range: tuple[float, float] | Literal["data"] | None = "data",
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

    `model` is a torch module, or whatever else `queen.models.as_module` takes: ONNX Runtime sessions and .onnx files,
    xgboost and scikit-learn classifiers. `train_data` is (x, y) tensors or arrays, a Dataset or a DataLoader,
    un-augmented. `calibration` is the same or images alone;
    they must not have trained the model ("train" takes the training images all the same, which voids the sentinel's
    certificate). With them the policy is "sentinel" unless another is named, without them "paper", with a warning.
    `foreign` images tell how soon thieves would be caught (without: noise and shuffled patches); a sentinel that would
    not catch them is refused unless `weak`.
    `price` also measures how good a copy so many answers make, which takes minutes (Ctrl-C skips it; a `Pricing` says
    how). `max_copy` does the same, then chooses limits under which no such copy agrees with the model on that share of
    held-out inputs, or raises a `LimitsError` where no budget of use does.
    `alpha` is the sentinel's false-accusation bound, 1e-3 unless `sentinel` says otherwise. `head` names the last layer
    if it is not the last Linear. `factory` ("package.module:function") with `factory_args` lets a saved bundle rebuild
    the model by itself; networks of `queen.zoo` need none. `progress` shows how far the fit is: None where somebody
    looks on, at a terminal or in a notebook; True everywhere, without bars in a log; False nowhere. Images outside
    `input_range` are refused ("data": the range of the training images; other inputs are not checked). Runs on the
    device the model is on, deterministic given `seed`.
    """
    given, model = model, as_module(model)
    train_data, calibration = numbered(train_data, model), numbered(calibration, model)
    chosen, settings = _check_options(policy, calibration, sentinel, alpha, seed)
    copies = CopyOptions(price, max_copy)
    copies.check(chosen, settings, calibration, observe=observe, has_limits=bool(limits or absolute_radius))
    recipe = shadow_recipe(shadows)
    generator = torch.Generator().manual_seed(seed)
    with Progress(progress) as show:
        model = ready(model, train_data)
        sample = take_sample(train_data, model)
        split = find_split(model, sample, head)
        settings = settings_for(model, sentinel, settings)  # now it has run
        outputs = _extract(split, train_data, sample, show, keep_inputs=recipe.kind == "network")
        map_net = _fit_map(outputs, mapping or MapRecipe(), generator, show)
        points = map_net(outputs.features)
        geometry = measure(outputs.features, points, outputs.labels, outputs.logits.shape[1])
        agreement = _check_agreement(points, geometry, outputs, min_agreement)
        shadow_models, warnings = fit_shadows(outputs, recipe, generator, show)
        limits = _limits(limits, absolute_radius, geometry, chosen)
        report = _report(outputs, points, geometry, agreement, recipe, shadow_models)
        if policy is None and calibration is None:
            warnings.append(PAPER_ONLY)
            warn(PAPER_ONLY, ProtectionWarning, stacklevel=2)
        if is_sigmoid(outputs.logits):
            warnings.append(SIGMOIDS)
            warn(SIGMOIDS, ProtectionWarning, stacklevel=2)
        if chosen == "sentinel" and limits.ends_for_life:
            warnings.append(FOR_LIFE)
            warn(FOR_LIFE, ProtectionWarning, stacklevel=2)
        report.model = describe(given, split, settings)
        report.warnings, report.seconds = warnings, show.seconds  # which the calibration still adds to
        bundle = Bundle(
            split=split,
            mapping=map_net,
            geometry=geometry,
            shadows=shadow_models,
            probe=make_probe(split, sample, generator, outputs.span),
            reference=_reference(outputs, generator),
            limits=limits,
            observe=observe,
            keep_label=keep_label,
            sentinel=settings,
            input_range=outputs.span if input_range == "data" else input_range,
            draw=recipe.draw,
            recipe=recipe_for(model, factory, factory_args),
            class_names=names_for(model, class_names),
            pixel_mean=tuple(pixel_mean) if pixel_mean else None,
            pixel_std=tuple(pixel_std) if pixel_std else None,
            report=vars(report),
        )
        if calibration is not None:
            with show.timed("calibration"):
                bundle = calibrate_bundle(
                    bundle,
                    train_data if isinstance(calibration, str) else calibration,
                    show,
                    foreign=foreign,
                    certified=not isinstance(calibration, str),
                    simulate=chosen == "sentinel",
                    seed=seed,
                )
        bundle = bundle.with_options(policy=chosen, limits=limits)  # last: the sentinel's policy needs a calibration
        if calibration is not None and not isinstance(calibration, str):
            _warn_of_shared(bundle, train_data, calibration)
        weakness = bundle.weakness()
        if weakness and not weak:
            raise CalibrationError(f"{weakness}; or take it as it is: weak=True (--weak)")
        if problem := weakness or bundle.blind_spot():
            bundle.report["warnings"].append(f"calibration: {problem}")
            warn(problem, ProtectionWarning, stacklevel=2)
        bundle = copies.apply(bundle, train_data, calibration, show, seed)
    show.say([*Report(**bundle.report).lines(), *(f"price: {line}" for line in bundle_price_lines(bundle))])
    return Guard(bundle, ledger=ledger, secret=secret)


def _check_options(
    policy: str | None,
    calibration: Images | str | None,
    sentinel: Sentinel | None,
    alpha: float | None,
    seed: int,
) -> tuple[str, Sentinel]:
    """Policy and settings; whatever is wrong with the options is said now, before the work and not after it."""
    if policy is None:
        policy = "paper" if calibration is None else "sentinel"
    find_policy(policy)
    if policy == "sentinel" and calibration is None:
        raise CalibrationError(NO_CALIBRATION)
    if isinstance(calibration, str) and calibration != "train":
        raise OptionError(f"calibration must be held-out data or 'train', got '{calibration}'")
    settings = Sentinel() if sentinel is None else check_sentinel(sentinel)
    settings = settings if alpha is None else replace(settings, alpha=alpha)
    if not isinstance(seed, int):
        raise OptionError(f"seed must be an integer, got {seed!r}")
    return policy, settings


def _warn_of_shared(bundle: Bundle, train: Data, calibration: Images) -> None:
    """Warn, and say in the report, if calibration images trained the model: who gives such has hardly meant to."""
    if found := find_shared(train, calibration):
        text = f"expected {found.what} {found.expected}, got {found.got}: {found.fix}"
        bundle.report["warnings"].append(f"calibration: {text}")
        warn(text, ProtectionWarning, stacklevel=3)


def _extract(split: Split, data: Data, sample: Inputs, show: Progress, *, keep_inputs: bool) -> ModelOutputs:
    with show.timed("features"):
        [outputs] = extract_features(split, data, sample, show, "features", keep_inputs=keep_inputs)
    check_labels(outputs.labels, outputs.logits.shape[1])
    return outputs


def _reference(outputs: ModelOutputs, generator: torch.Generator, rows: int = 2000) -> Reference:
    """A random sample of the training images, for the knn score."""
    chosen = torch.randperm(len(outputs.features), generator=generator)[:rows].to(outputs.features.device)
    return make_reference(outputs.features[chosen])


def _fit_map(outputs: ModelOutputs, recipe: MapRecipe, generator: torch.Generator, show: Progress) -> MappingNet:
    if recipe.loss not in ("out", "in"):
        raise OptionError(f"no contrastive loss '{recipe.loss}'; known: out, in")
    small = recipe.batch_for(outputs.logits.shape[1]) <= SMALL_BATCH
    with show.timed("map"), show.bar("map", recipe.epochs) as advance, one_thread() if small else nullcontext():
        return train_map(outputs.features, outputs.labels, recipe, generator, advance)


def _check_agreement(points: Tensor, geometry: Geometry, outputs: ModelOutputs, floor: float) -> float:
    """The map's health: how often the nearest centre is the classifier's own answer, which must not be rare."""
    labels = outputs.logits.argmax(1)
    agreement = (nearest_centre(points, geometry) == labels).double().mean().item()
    if agreement >= floor:
        return agreement
    right = (labels == outputs.labels).double().mean().item()
    advice = (
        "train the map longer, mapping=MapRecipe(epochs=1000, halve_every=200), or with another seed, or take it as it "
        "is, min_agreement=..."
    )
    if right < min(floor, LEAST_AGREEMENT):
        advice = (
            f"the model itself is right on {right:.1%} of them; is it trained, and are inputs prepared as in its "
            "training? queen.check(model, data) says"
        )
    raise MapError(
        f"expected a 2-D map that agrees with the model on at least {floor:.0%} of the training images, got one that "
        f"does on {agreement:.1%}: {advice}"
    )


def _limits(limits: Limits | None, absolute_radius: float | None, geometry: Geometry, policy: str) -> Limits:
    """Relative limits, the policy's where none are given; an absolute radius r becomes r / d^k for every class."""
    if absolute_radius is None:
        return limits or default_limits(policy)
    if limits is not None:
        raise LimitsError("give either limits or absolute_radius, not both")
    Limits(radius=absolute_radius)  # which checks that it is a number
    return Limits(radius=geometry.relative_radii(absolute_radius))


def _report(
    outputs: ModelOutputs, points: Tensor, geometry: Geometry, agreement: float, recipe: ShadowRecipe, shadows: Shadows
) -> Report:
    labels = outputs.logits.argmax(1)
    train = Benign(labels.cpu().numpy(), geometry.relative(points, labels).cpu().numpy())
    accuracy, confidence = try_shadows(shadows, outputs)
    return Report(
        classes=geometry.classes,
        training_images=len(outputs.labels),
        agreement=agreement,
        outside=train.outside,
        spreads=geometry.spreads.tolist(),
        mean_square_sensitivity=mean_square_sensitivity(train),
        shadow_kind=f"{len(shadows)} {recipe.kind}",
        shadow_accuracy=accuracy,
        shadow_confidence=confidence,
    )
