"""Training a thief on what an attack believes, with second chances, and trying it after every epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from queen.attacks import ATTACKS
from queen.attacks.base import Attack, Knowledge, Transcript, train_thief
from queen.bench.code import trying_code
from queen.bench.naming import as_json, digest
from queen.bench.protectee import Protectee
from queen.bench.trials.trial import Trial
from queen.cache import Cache, Timed, fingerprint
from queen.core.split import run_model
from queen.training import Schedule, collapsed, predict

LUCK = 0.05  # above chance
FITTED = 5000  # answers that a thief is asked about after its training
LOOKS = 10  # times a thief is tried while it trains, about: each costs a pass over the test images


def measure_thief(
    believed: Transcript,
    knowledge: Knowledge,
    trial: Trial,
    protectee: Protectee,
    cache: Cache,
    *,
    should_learn: bool,
) -> Timed:
    """Train a thief and try it. Equal beliefs give equal thieves, so each is trained once and its figures are cached.

    `should_learn`: most labels it believes are right, so that a thief at chance means that its training failed.
    """
    if len(believed) == 0:
        return Timed({"accuracy": None, "epochs": {}, "why": "nothing was answered"}, 0.0, reused=False)
    learn = ATTACKS[trial.attack].learn
    blank = protectee.make_thief(torch.Generator().manual_seed(0))
    recipe = [
        protectee.key,
        [learn.__module__, learn.__qualname__],
        as_json(knowledge.schedule),
        fingerprint(repr(blank).encode(), *blank.state_dict().values()),
        trial.seed,
        as_json(trial.sizes),
        fingerprint(believed.x, believed.answers),
        trying_code(),
    ]
    return cache.timed(
        f"thief-{digest(recipe)}",
        lambda: _train_with_retries(believed, knowledge, trial, protectee, should_learn=should_learn),
    )


def is_at_chance(thief: Mapping[str, Any], protectee: Protectee) -> bool:
    """Whether a thief never was better than a constant guess with some luck."""
    return bool(thief["best_accuracy"] < protectee.chance + LUCK)


def _train_with_retries(
    believed: Transcript, knowledge: Knowledge, trial: Trial, protectee: Protectee, *, should_learn: bool
) -> dict[str, Any]:
    """Before a failed training counts as a defense's success, the thief gets two more chances.

    It failed if it is NaN, collapsed to one class, or is at chance though it should learn. Then it is trained again
    with a tenth of the rate, and at last for longer; answers that are no probabilities are made some before.
    """

    def has_failed(thief: Mapping[str, Any]) -> bool:
        return bool(thief["nan"] or thief["collapsed"] or (should_learn and is_at_chance(thief, protectee)))

    tries = [_train_once(believed, knowledge, trial, protectee)]
    if has_failed(tries[0]):
        plain = knowledge.schedule
        sums = believed.answers.clamp(min=0).sum(1, keepdim=True).clamp(min=1e-12)
        sane = believed.with_answers(believed.answers.clamp(min=0) / sums)
        for schedule in (
            replace(plain, lr=plain.lr / 10, clip=1.0),
            replace(plain, epochs=3 * plain.epochs, lr=2 * plain.lr, clip=1.0),
        ):
            if has_failed(tries[-1]):
                tries.append(_train_once(sane, replace(knowledge, schedule=schedule), trial, protectee))
    best = max(tries, key=lambda thief: (not thief["nan"], thief["accuracy"]))
    return {**best, "retried": len(tries) > 1, "tries": [thief["accuracy"] for thief in tries]}


def _train_once(believed: Transcript, knowledge: Knowledge, trial: Trial, protectee: Protectee) -> dict[str, Any]:
    x, y = protectee.test
    original = protectee.victim.clean(x).argmax(1)
    total, _ = knowledge.schedule.plan(len(believed))
    stride = max(1, total // LOOKS)
    epochs: dict[str, list[float]] = {"epoch": [], "accuracy": [], "agreement": []}
    last: list[Tensor] = []
    epoch = 0

    @torch.inference_mode()
    def look(thief: nn.Module) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            logits = torch.cat([run_model(thief, part).float() for part in x.split(1024)])  # type: ignore[no-untyped-call]
        last[:] = [logits]
        guess = logits.argmax(1)
        epochs["epoch"].append(epoch)
        epochs["accuracy"].append((guess == y).double().mean().item())
        epochs["agreement"].append((guess == original).double().mean().item())

    def look_now_and_then(thief: nn.Module) -> None:
        nonlocal epoch
        epoch += 1
        if epoch % stride == 0:
            look(thief)

    start = time.perf_counter()
    watched = replace(knowledge, on_epoch=look_now_and_then)
    thief = ATTACKS[trial.attack].learn(believed, watched, trial.generator("thief"))
    seconds = time.perf_counter() - start
    if epochs["epoch"][-1:] != [epoch]:
        look(thief)
    [logits] = last
    return {
        "accuracy": epochs["accuracy"][-1],
        "agreement": epochs["agreement"][-1],
        "best_accuracy": max(epochs["accuracy"]),
        "best_agreement": max(epochs["agreement"]),
        "epochs": epochs,
        "collapsed": collapsed(logits.argmax(1)),
        "nan": not bool(logits.isfinite().all()),
        "fits": _fits(thief, believed),
        "images_per_second": _images_per_second(ATTACKS[trial.attack], believed, knowledge.schedule, seconds),
        "training_seconds": round(seconds, 3),
    }


def _fits(thief: nn.Module, believed: Transcript) -> float:
    """The share of the labels it learnt from that the thief knows, of the first `FITTED` of them."""
    known = predict(thief, believed.x[:FITTED]) == believed.answers[:FITTED].argmax(1)
    return known.double().mean().item()


def _images_per_second(attack: Attack, believed: Transcript, schedule: Schedule, seconds: float) -> int | None:
    """How fast a thief saw its answers; None where an attack learns in its own way, which may see them more often."""
    if attack.learn is not train_thief:
        return None
    epochs, per_epoch = schedule.plan(len(believed))
    shown = per_epoch * min(schedule.batch, len(believed)) if believed.x.is_cuda else len(believed)
    return round(epochs * shown / seconds)
