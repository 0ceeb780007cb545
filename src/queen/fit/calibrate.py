"""Calibration on held-out images or recorded traffic, and how soon benign clients and thieves would be accused."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.bundle.calibration import Calibration, Trusted
from queen.bundle.report import Report
from queen.core.geometry import check_range
from queen.core.sensitivity import Floats
from queen.errors import CalibrationError, OptionError
from queen.fit.data import Images
from queen.fit.features import ModelOutputs, View, extract_features
from queen.fit.foreign import MOST as FOREIGN
from queen.fit.foreign import Sample, made_foreign, own_foreign
from queen.fit.traffic import TrustedSplit, all_batches, replay, split_clients
from queen.fit.views import apply_condition, pixel_range
from queen.guard import Guard
from queen.options import SCORES, Sentinel
from queen.progress import Progress
from queen.sentinel.bets import Bets
from queen.sentinel.conditions import CLEAN, check_condition
from queen.sentinel.decoy import BANK
from queen.sentinel.ranks import robust_spreads
from queen.sentinel.scores import all_scores
from queen.sentinel.sketch import measure_tolerance, repeats
from queen.sentinel.wealth import Winnings, place_bets

ENOUGH = 20  # images per class, from which on evidence is worth having
MANY_CLIENTS = 10  # from which on their images may stand for those of all clients
FOLDS, ORDERS = 5, 10  # of the simulated benign clients


def calibrate(
    guard: Guard,
    data: Images | None = None,
    *,
    trusted: Mapping[str, Images] | None = None,
    foreign: Images | None = None,
    conditions: Sequence[str] = (),
    start_over: bool = False,
    seed: int = 0,
    progress: bool | None = None,
) -> Guard:
    """The same guard, ledger and secret, calibrated on other held-out images, which must not have trained the model.

    `data` is images alone, x, or with labels, (x, y), a Dataset, a DataLoader or a list of batches x; labels are
    checked but not needed. `trusted` maps names of clients one trusts to what each of them has sent, in order: all of
    them set the bar, which no trusted client may reach; without `data` half of them calibrate instead.
    `foreign` images tell how soon thieves would be caught (without: noise and shuffled patches).
    `conditions` are what honest clients may do to images: noise, blur, brightness, contrast, downscale, jpeg, each with
    an optional strength ("noise:0.06"). Every image gets one of them or none at random, and the certificate is for
    clients who send such a mixture. The report gains the share of simulated benign clients accused under each.
    `start_over` begins a new account: what earlier calibrations spent of alpha is not counted any more.
    """
    if isinstance(conditions, str):
        raise OptionError(f"conditions must be a list of names, got {conditions!r}")
    names = (CLEAN, *dict.fromkeys(map(check_condition, conditions)))
    old = guard.bundle.calibration
    account = secrets.token_hex(8) if start_over else old.account if old else ""
    with Progress(progress) as show:
        set_bar: SetBar | None = None
        if trusted is not None:
            clients = split_clients(trusted, has_data=data is not None, seed=seed)
            set_bar = partial(_set_bar, guard, trusted, clients, show)
            data = all_batches(trusted, clients.calibrating) if data is None else data
        if data is None:
            raise CalibrationError("expected images, calibrate(guard, x), or trusted={client: x}, got neither")
        bundle = calibrate_bundle(
            guard.bundle, data, show, foreign=foreign, conditions=names, account=account, set_bar=set_bar, seed=seed
        )
    if weakness := bundle.weakness() or bundle.blind_spot():
        bundle.report["warnings"].append(f"calibration: {weakness}")
    show.say(Report(**bundle.report).lines())
    return guard.with_bundle(bundle)


SetBar = Callable[[Bundle], tuple[Trusted, str, list[str]]]
"""What trusted clients reach under a bundle, in numbers and in words, and warnings."""


def _set_bar(
    guard: Guard, trusted: Mapping[str, Images], clients: TrustedSplit, show: Progress, bundle: Bundle
) -> tuple[Trusted, str, list[str]]:
    bar, who = replay(guard.with_bundle(bundle), trusted, clients.setting_bar, show)
    calibrating = f"what {_clients(len(clients.calibrating))} sent" if clients.calibrating else "the data"
    warnings = []
    if 0 < len(clients.calibrating) < MANY_CLIENTS:
        warnings.append(
            f"calibration: the images of {len(clients.calibrating)} clients stand for those of all, so clients unlike "
            "them may be accused: trust more clients, or give calibration images as data"
        )
    words = f"{calibrating} calibrates, {_clients(bar.clients)} set the bar: none exceeds wealth {bar.highest:.3g}"
    usual = bundle.test.bar(1) / bundle.test.size
    if bar.highest < usual:
        return bar, words, warnings
    warnings.append(
        f"calibration: trusted client '{who}' exceeds the usual bar {usual:.3g}, so the bar rises and alarms take "
        "longer; if that client may be a thief, leave it out"
    )
    return bar, words, warnings


def _clients(count: int) -> str:
    return f"{count} trusted client{'s' * (count != 1)}"


def calibrate_bundle(
    bundle: Bundle,
    data: Images,
    show: Progress,
    *,
    foreign: Images | None = None,
    conditions: Sequence[str] = (CLEAN,),
    certified: bool = True,
    simulate: bool = True,
    account: str = "",
    set_bar: SetBar | None = None,
    seed: int = 0,
) -> Bundle:
    """The bundle with a calibration on these images, and a report that covers it; `protect` and `calibrate` end here.

    `conditions` start with `CLEAN`. Not `certified`: the images trained the model. `simulate`: also report how often
    simulated benign clients, and how soon simulated thieves, would be accused.
    """
    generator, other_generator = (torch.Generator().manual_seed(seed) for _ in range(2))
    pixels = pixel_range(bundle, data) if len(conditions) > 1 else None
    sample = Sample(FOREIGN, other_generator)
    cameras: list[View] = [sample, *(partial(apply_condition, name, pixels, generator) for name in conditions[1:])]
    outputs = extract_features(bundle.split, data, bundle.probe.x, show, "calibration", labelled=False, views=cameras)
    views = summarise(outputs, bundle, conditions, generator, certified=certified)
    tolerance = views.calibration.tolerance
    if foreign is not None:
        thief = own_foreign(bundle, foreign, tolerance, show, other_generator)
    else:
        thief = made_foreign(bundle, sample.drawn(), tolerance, show, other_generator)
    calibration = replace(views.calibration, account=account, foreign=thief)
    traffic, warnings = "", list[str]()
    if set_bar is not None:
        bar, traffic, warnings = set_bar(replace(bundle, calibration=calibration))
        calibration = replace(calibration, trusted=bar)
    views.calibration = calibration
    facts: dict[str, Any] = {"traffic": traffic, "alarm_rates": {}, "alarm_after": {}}
    if simulate:
        with show.bar("simulated clients", 1) as advance:
            facts["alarm_rates"] = alarm_rates(views, bundle.sentinel, seed)
            facts["alarm_after"] = calibration.alarm_after(bundle.sentinel)
            advance()
    return _with_calibration(bundle, calibration, warnings, facts)


class Views:
    """Calibration images under every condition, and the `Calibration` drawn from them."""

    def __init__(self, calibration: Calibration, labels: list[Tensor], scores: list[Tensor], chosen: Tensor) -> None:
        self.calibration = calibration
        self.labels: list[NDArray[np.int64]] = [t.cpu().numpy() for t in labels]
        self.scores: list[Floats] = [t.double().cpu().numpy() for t in scores]
        self.chosen: NDArray[np.int64] = chosen.cpu().numpy()


def summarise(
    outputs: Sequence[ModelOutputs],
    bundle: Bundle,
    names: Sequence[str],
    generator: torch.Generator,
    *,
    certified: bool = True,
) -> Views:
    """From one pass under every condition to the `Calibration` that the guard stores."""
    geometry = bundle.geometry
    if len(outputs[0].labels):  # they are not needed, but wrong ones show that something is wrong with the data
        check_range(outputs[0].labels, geometry.classes)
    tolerance = measure_tolerance(outputs[0].features, outputs[0].logits.argmax(1))
    # A client's repeats place no bet, so what is usual must be measured without repeats too.
    new = ~repeats(outputs[0].features, outputs[0].logits.argmax(1), tolerance)
    features, logits = [one.features[new] for one in outputs], [one.logits[new] for one in outputs]
    with torch.inference_mode():
        labels = [one.argmax(1) for one in logits]
        points = [geometry.relative(bundle.mapping(u), k) for u, k in zip(features, labels, strict=True)]
        parts = zip(features, logits, points, strict=True)
        scores = [all_scores(u, one, p, bundle.reference) for u, one, p in parts]
    count = len(labels[0])
    chosen = torch.randint(len(names), (count,), generator=generator)
    everyone = torch.arange(count)

    def pick(views: list[Tensor], rows: Tensor = everyone) -> Tensor:
        stacked = torch.stack([view[rows.to(view.device)] for view in views])
        return stacked[chosen[rows].to(stacked.device), torch.arange(len(rows)).to(stacked.device)].clone()

    picked_labels, picked_scores = pick(labels), pick(scores)
    # Evenly spread, since data may be sorted by class.
    bank = torch.linspace(0, count - 1, min(BANK, count)).long()
    spreads = robust_spreads(picked_labels.cpu().numpy(), picked_scores.double().cpu().numpy(), geometry.classes)
    calibration = Calibration(
        labels=picked_labels,
        points=pick(points),
        scores=picked_scores,
        spreads=torch.from_numpy(spreads).to(labels[0].device),
        condition=chosen.to(labels[0].device),
        answers=pick(logits, bank).float().softmax(1),
        tolerance=tolerance,
        conditions=tuple(names),
        certified=certified,
        repeated=int((~new).sum()),
    )
    return Views(calibration, labels, scores, chosen)


def alarm_rates(views: Views, settings: Sentinel, seed: int = 0) -> dict[str, float]:
    """Share of simulated benign clients accused under each condition.

    Five times, four fifths of the images calibrate and clients send the other fifth, all of it under one condition, in
    ten random orders. So no client sends an image that calibrated; clients who send more than a fifth are not tried.
    Empty where there are too few images to divide.
    """
    if len(views.chosen) < FOLDS:
        return {}
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


def _with_calibration(bundle: Bundle, calibration: Calibration, warnings: list[str], facts: dict[str, Any]) -> Bundle:
    """The bundle with another calibration, and a report that covers it."""
    others = [w for w in bundle.report["warnings"] if not w.startswith("calibration")]
    report = bundle.report | {
        "calibration_images": len(calibration.benign.labels),
        "calibration_outside": calibration.benign.outside,
        "foreign": calibration.foreign.name if calibration.foreign else "",
        **facts,
        "warnings": others + warnings + _warnings(bundle, calibration),
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
