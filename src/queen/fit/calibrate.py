"""Calibration on held-out images, and how often benign clients who send such images would be accused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bundle.bundle import Bundle, Calibration
from queen.bundle.report import Report
from queen.core.geometry import check_range
from queen.core.sensitivity import Floats
from queen.errors import CalibrationError, OptionError, ShapeError
from queen.fit.data import Data, batches
from queen.fit.features import ModelOutputs, View, extract_features
from queen.guard import Guard
from queen.options import SCORES, Sentinel
from queen.progress import Progress
from queen.sentinel.conditions import CLEAN, apply, check_condition
from queen.sentinel.bets import Bets
from queen.sentinel.ranks import robust_spreads
from queen.sentinel.scores import all_scores
from queen.sentinel.sketch import JITTER, measure_scales, repeats
from queen.sentinel.wealth import Winnings, place_bets
from queen.types import Inputs

ENOUGH = 20  # images per class, from which on evidence is worth having
FOLDS, ORDERS = 5, 10  # of the simulated benign clients


def calibrate(
    guard: Guard,
    data: Data,
    *,
    conditions: Sequence[str] = (),
    seed: int = 0,
    progress: bool | None = None,
) -> Guard:
    """The same guard, ledger and secret, calibrated on other held-out images, which must not have trained the model.

    `conditions` are what honest clients may do to images: noise, blur, brightness, contrast, downscale, jpeg, each with
    an optional strength ("noise:0.06"). Every image gets one of them or none at random, and the certificate is for
    clients who send such a mixture. The report gains the share of simulated benign clients accused under each condition.
    """
    if isinstance(conditions, str):
        raise OptionError(f"conditions must be a list of names, got {conditions!r}")
    names = (CLEAN, *dict.fromkeys(map(check_condition, conditions)))
    with Progress(progress) as show:
        bundle = calibrate_bundle(guard.bundle, data, show, conditions=names, seed=seed)
    show.say(Report(**bundle.report).lines())
    return guard.with_bundle(bundle)


def calibrate_bundle(
    bundle: Bundle,
    data: Data,
    show: Progress,
    *,
    conditions: Sequence[str] = (CLEAN,),
    certified: bool = True,
    simulate: bool = True,
    seed: int = 0,
) -> Bundle:
    """The bundle with a calibration on these images, and a report that covers it; `protect` and `calibrate` end here.

    `conditions` start with `CLEAN`. Not `certified`: the images trained the model. `simulate`: also report how often simulated benign clients would be accused.
    """
    generator = torch.Generator().manual_seed(seed)
    pixels = _pixels(bundle, data) if len(conditions) > 1 else None
    cameras: list[View] = [partial(_apply_condition, name, pixels, generator) for name in conditions]
    *outputs, jittered = extract_features(
        bundle.split, data, bundle.probe.x, show, "calibration", views=[*cameras, jitter]
    )
    views = summarise(outputs, jittered, bundle, conditions, generator, certified=certified)
    rates = alarm_rates(views, bundle.sentinel, seed) if simulate else {}
    return _with_calibration(bundle, views.calibration, rates)


class Views:
    """Calibration images under every condition, and the `Calibration` drawn from them."""

    def __init__(self, calibration: Calibration, labels: list[Tensor], scores: list[Tensor], chosen: Tensor) -> None:
        self.calibration = calibration
        self.labels: list[NDArray[np.int64]] = [t.cpu().numpy() for t in labels]
        self.scores: list[Floats] = [t.double().cpu().numpy() for t in scores]
        self.chosen: NDArray[np.int64] = chosen.cpu().numpy()


def jitter(x: Inputs) -> Inputs:
    """A batch as re-encoding might change it: uniform noise of a thousandth of its range; token ids stay."""
    generator = torch.Generator().manual_seed(0)

    def shake(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        noise = 2 * torch.rand(t.shape, generator=generator) - 1
        return t + (JITTER * (t.max() - t.min()) * noise.to(t.device)).to(t.dtype)

    return {name: shake(t) for name, t in x.items()} if isinstance(x, Mapping) else shake(x)


def summarise(
    outputs: Sequence[ModelOutputs],
    jittered: ModelOutputs,
    bundle: Bundle,
    names: Sequence[str],
    generator: torch.Generator,
    *,
    certified: bool = True,
) -> Views:
    """From one pass under every condition (and a jittered one) to the `Calibration` that the guard stores."""
    geometry = bundle.geometry
    check_range(outputs[0].labels, geometry.classes)
    tolerance, cell = measure_scales(outputs[0].features, outputs[0].logits.argmax(1), jittered.features)
    # A client's repeats place no bet, so what is usual must be measured without repeats too.
    new = ~repeats(outputs[0].features, outputs[0].logits.argmax(1), tolerance)
    outputs = [ModelOutputs(one.features[new], one.logits[new], one.labels[new]) for one in outputs]
    with torch.inference_mode():
        labels = [one.logits.argmax(1) for one in outputs]
        points = [geometry.relative(bundle.mapping(one.features), k) for one, k in zip(outputs, labels, strict=True)]
        scores = [all_scores(one.features, one.logits, p, bundle.reference) for one, p in zip(outputs, points, strict=True)]
    count = len(labels[0])
    chosen = torch.randint(len(names), (count,), generator=generator)
    rows = torch.arange(count)

    def pick(views: list[Tensor]) -> Tensor:
        stacked = torch.stack(views)
        return stacked[chosen.to(stacked.device), rows.to(stacked.device)].clone()

    picked_labels, picked_scores = pick(labels), pick(scores)
    spreads = robust_spreads(picked_labels.cpu().numpy(), picked_scores.double().cpu().numpy(), geometry.classes)
    calibration = Calibration(
        labels=picked_labels,
        points=pick(points),
        scores=picked_scores,
        spreads=torch.from_numpy(spreads).to(labels[0].device),
        condition=chosen.to(labels[0].device),
        tolerance=tolerance,
        cell=cell,
        conditions=tuple(names),
        certified=certified,
        repeated=int((~new).sum()),
    )
    return Views(calibration, labels, scores, chosen)


def alarm_rates(views: Views, settings: Sentinel, seed: int = 0) -> dict[str, float]:
    """Share of simulated benign clients accused under each condition.

    Five times, four fifths of the images calibrate and clients send the other fifth, all of it under one condition, in
    ten random orders. So no client sends an image that calibrated; clients who send more than a fifth are not tried.
    """
    calibration, rng = views.calibration, np.random.default_rng(seed)
    folds = rng.permutation(len(views.chosen)) % FOLDS
    columns = [SCORES.index(name) for name in settings.scores]
    accused = dict.fromkeys(calibration.conditions, 0)
    for fold in range(FOLDS):
        others = _take(calibration, folds != fold)
        betting, test = others.betting(settings), others.test(settings)
        for number, name in enumerate(calibration.conditions):
            rows = np.concatenate([rng.permutation(np.flatnonzero(folds == fold)) for _ in range(ORDERS)])
            labels, scores = views.labels[number][rows], views.scores[number][rows][:, columns]
            bets = Bets(*betting.lanes(labels, scores), [0] * len(rows), [()] * len(rows), test, enforce=True)
            owner = np.repeat(np.arange(ORDERS), len(rows) // ORDERS)
            clients = [Winnings.empty(test.scores) for _ in range(ORDERS)]
            reached = place_bets(clients, owner, labels, bets, test.bar(1)) if len(rows) else []
            accused[name] += sum(row is not None for row in reached)
    return {name: number / (FOLDS * ORDERS) for name, number in accused.items()}


def _take(calibration: Calibration, rows: NDArray[np.bool_]) -> Calibration:
    chosen = torch.from_numpy(rows).to(calibration.labels.device)
    parts = {name: getattr(calibration, name)[chosen] for name in ("labels", "points", "scores", "condition")}
    return replace(calibration, **parts)


def _with_calibration(bundle: Bundle, calibration: Calibration, rates: dict[str, float]) -> Bundle:
    """The bundle with another calibration, and a report that covers it."""
    report = bundle.report | {
        "calibration_images": len(calibration.benign.labels),
        "calibration_outside": calibration.benign.outside,
        "alarm_rates": rates,
        "warnings": [w for w in bundle.report["warnings"] if not w.startswith("calibration")]
        + _warnings(bundle, calibration),
    }
    return replace(bundle, calibration=calibration, report=report).with_options(limits=bundle.limits)


def _warnings(bundle: Bundle, calibration: Calibration) -> list[str]:
    warnings = []
    if calibration.repeated:
        warnings.append(f"calibration: {calibration.repeated} images repeat others and were left out")
    if not calibration.certified:
        warnings.append("calibration: these images trained the model, so there is no certificate")
    counts = np.bincount(calibration.labels.cpu().numpy(), minlength=bundle.geometry.classes)
    silent = np.flatnonzero(counts == 0).tolist()
    few = np.flatnonzero((counts > 0) & (counts < ENOUGH)).tolist()
    if silent:
        warnings.append(f"calibration: no image is predicted as {_list(bundle, silent)}: queries there are no evidence")
    if few:
        warnings.append(
            f"calibration: fewer than {ENOUGH} images predicted as {_list(bundle, few)}: evidence grows slowly there"
        )
    return warnings


def _list(bundle: Bundle, classes: Sequence[int], most: int = 10) -> str:
    named = ", ".join(bundle.name_of(k) for k in classes[:most])
    return named + (f" and {len(classes) - most} more" if len(classes) > most else "")


def _pixels(bundle: Bundle, data: Data) -> tuple[Tensor, Tensor]:
    """Black and the way to white, in the model's units: the bundle's pixel statistics, or the first batch's range."""
    like = bundle.probe.x
    if not isinstance(like, Tensor) or like.ndim != 4 or not like.is_floating_point():
        raise ShapeError("conditions are for images (n, C, H, W); calibrate this model without them")
    if bundle.pixel_mean and bundle.pixel_std:
        mean, std = (torch.tensor(v, device=like.device)[:, None, None] for v in (bundle.pixel_mean, bundle.pixel_std))
        return -mean / std, 1 / std
    first = next(iter(batches(data)), None)
    if first is None or not isinstance(first[0], Tensor):
        raise CalibrationError("the calibration data holds no images")
    low, high = first[0].min().to(like.device, torch.float32), first[0].max().to(like.device, torch.float32)
    return low, (high - low).clamp(min=1e-6)


def _apply_condition(name: str, pixels: tuple[Tensor, Tensor] | None, generator: torch.Generator, x: Inputs) -> Inputs:
    """A batch under a condition, in the units the model takes."""
    if name == CLEAN or pixels is None or not isinstance(x, Tensor):
        return x
    black, range_ = pixels
    return (apply(name, (x.float() - black) / range_, generator) * range_ + black).to(x.dtype)
