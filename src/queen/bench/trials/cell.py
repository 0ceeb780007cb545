"""One cell: a thief asks a defended victim, trains, and is tried; everything about it that a table may need."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from queen.attacks import ATTACKS
from queen.attacks.base import Transcript
from queen.bench.code import describe_code, trying_code
from queen.bench.naming import as_json, digest
from queen.bench.protectee import Protectee
from queen.bench.spec import VERSION
from queen.bench.trials.asking import Interrogation, interrogate
from queen.bench.trials.flags import (
    explain_flags,
    flag_answers,
    flag_recovery,
    flag_thief,
    repeats_itself,
    should_learn,
)
from queen.bench.trials.thief import measure_thief
from queen.bench.trials.trial import Trial
from queen.bench.trials.utility import distances, measure_utility
from queen.cache import Cache, Timed
from queen.defenses import DEFENSES


def run_trial(trial: Trial, protectee: Protectee, cache: Cache, *, jobs: int = 1) -> dict[str, Any]:
    """Attack one defense, train the thief, and return all figures as plain JSON; `jobs` trials run at the same time."""
    begin = time.perf_counter()
    defense, attack = DEFENSES[trial.defense], ATTACKS[trial.attack]
    fit, utility = fit_defense(trial, protectee, cache), _utility(trial, protectee, cache)
    asked = interrogate(trial, protectee, cache)
    transcript, knowledge, sent = asked.transcript, asked.knowledge, asked.sent
    start = time.perf_counter()
    findings: dict[str, Any] = {}
    believed = attack.believe(transcript, replace(knowledge, findings=findings), trial.generator("believe"))
    recovering = round(time.perf_counter() - start, 3)
    clean = protectee.victim.clean(transcript.x)
    answers = _compare(transcript, clean) | {"honest": _honest(asked)}
    truth = clean if believed.x is transcript.x else protectee.victim.clean(believed.x)
    label_right = _share(believed.answers.argmax(1) == truth.argmax(1))
    training = measure_thief(
        believed, knowledge, trial, protectee, cache, should_learn=should_learn(label_right, protectee)
    )
    thief = training.value
    flags = [
        *flag_answers(transcript, defense, repeated=_repeats_itself(trial, protectee, cache)),
        *flag_recovery(findings),
        *flag_thief(thief, label_right, answers["label_kept"], protectee),
        *(["budget exceeded, as published"] if sent > trial.budget else []),
    ]
    phases: dict[str, Timed | Interrogation] = {"fit": fit, "utility": utility, "ask": asked, "train": training}
    result: dict[str, Any] = {
        "version": VERSION,
        "protectee": protectee.facts(),
        "column": trial.column,
        "defense": {
            "name": trial.defense,
            "options": {**defense.options, **trial.options},
            "keeps_label": defense.keeps_label,
            "needs": sorted(defense.needs),
        },
        "query": trial.query,
        "attack": trial.attack,
        "seed": trial.seed,
        "oracle_prior": "prior" in attack.knows,
        "knows": list(attack.knows),
        "queries": {"budget": trial.budget, "sent": sent, "answered": len(transcript) + transcript.forgotten},
        "verdicts": {name: count / sent for name, count in asked.verdicts.items()},
        "answers": answers,
        "believed": {"label_right": label_right},
        "recovery": findings,
        "utility": utility.value,
        "thief": thief,
        "flags": flags,
        "explained": {},
        "sizes": as_json(trial.sizes),
        "seconds": {"victim": protectee.seconds, "recover": recovering}
        | {name: phase.seconds for name, phase in phases.items()},
        "reused": [name for name, phase in phases.items() if phase.reused],
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **describe_code()},
        "hardware": hardware(protectee.pool.device) | {"jobs": jobs},
    }
    result["explained"] = explain_flags(flags, result, len(believed))
    own = recovering + sum(phase.seconds for phase in phases.values() if not phase.reused)
    result["seconds"]["other"] = round(max(0.0, time.perf_counter() - begin - own), 3)
    return result


def hardware(device: torch.device) -> dict[str, Any]:
    """What a trial ran on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "threads": torch.get_num_threads()}


def fit_defense(trial: Trial, protectee: Protectee, cache: Cache) -> Timed:
    """Set the defense up once, so that all it trains is in the cache; how long that took."""
    return cache.timed(_name("fit", trial, protectee), lambda: trial.start_endpoint(protectee) and None)


def _utility(trial: Trial, protectee: Protectee, cache: Cache) -> Timed:
    """What benign clients get, measured once for all attacks on the same defense."""
    return cache.timed(
        _name("utility", trial, protectee),
        lambda: measure_utility(trial.start_endpoint(protectee), protectee, trial.utility),
    )


def _repeats_itself(trial: Trial, protectee: Protectee, cache: Cache) -> bool:
    """Whether equal queries get equal answers, tried once for all attacks on the same defense."""
    return bool(cache.facts(_name("repeats", trial, protectee), lambda: repeats_itself(trial, protectee)))


def _name(what: str, trial: Trial, protectee: Protectee) -> str:
    """A name for what all attacks on one defense share."""
    recipe = [protectee.key, trial.defense, dict(trial.options), as_json(trial.utility), trial.seed]
    return f"{what}-{digest([what, *recipe, trying_code()])}"


def _compare(transcript: Transcript, clean: Tensor) -> dict[str, float]:
    """How far the attacker's answers are from the clean ones."""
    if len(transcript) == 0:
        return {"label_kept": 0.0}
    return {
        "label_kept": _share(transcript.answers.argmax(1) == clean.argmax(1)),
        **distances(clean, transcript.answers),
    }


def _honest(asked: Interrogation) -> float:
    """The share of honest answers among all that were given, by the service's own count (`Endpoint.verdicts`).

    Not by comparing numbers: an answer that happens to be near the model's is not honest, nor is one dishonest that was
    computed in another batch, that was rounded as everybody's are, or that the attacker averaged with others.
    """
    answered = asked.sent - asked.verdicts.get("refused", 0)
    return asked.verdicts["honest"] / answered if answered else 0.0


def _share(mask: Tensor) -> float:
    return mask.double().mean().item() if len(mask) else 0.0
