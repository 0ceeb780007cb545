"""One cell: a thief asks a defended victim, trains, and is tried; everything about it that a table may need."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from queen.attacks import ATTACKS
from queen.attacks.base import Transcript
from queen.attacks.strategies.cleaning import rounding_error
from queen.bench.flags import HONEST, flag_answers, flag_thief
from queen.bench.protectee import Protectee
from queen.bench.spec import VERSION, as_json, digest
from queen.bench.thief import measure_thief
from queen.bench.trial import Trial, interrogate
from queen.bench.utility import distances, measure_utility
from queen.cache import Cache
from queen.defenses import DEFENSES
from queen.defenses.queen import GuardedEndpoint

# Answers closer than this are equal; on a GPU they change a little with the batch they are computed in.
SAME: Mapping[str, float] = {"cpu": 1e-6, "cuda": 1e-4}


def run_trial(trial: Trial, protectee: Protectee, cache: Cache) -> dict[str, Any]:
    """Attack one defense, train the thief, and return all figures as plain JSON."""
    start = time.perf_counter()
    defense, attack = DEFENSES[trial.defense], ATTACKS[trial.attack]
    utility = _utility(trial, protectee, cache)
    attacked = interrogate(trial, protectee)
    transcript, knowledge, sent = attacked.transcript, attacked.knowledge, attacked.oracle.used
    verdicts = attacked.endpoint.verdicts if isinstance(attacked.endpoint, GuardedEndpoint) else {}
    asked = time.perf_counter()
    believed = attack.believe(transcript, knowledge, trial.generator("believe"))
    recovered = time.perf_counter()
    answers = _compare(transcript, protectee.victim.clean(transcript.x))
    label_right = _share(believed.answers.argmax(1) == protectee.victim.clean(believed.x).argmax(1))
    thief = measure_thief(believed, knowledge, trial, protectee, cache, should_learn=label_right > HONEST)
    return {
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
        "queries": {"budget": trial.budget, "sent": sent, "answered": len(transcript)},
        "verdicts": {name: count / sent for name, count in verdicts.items()},
        "answers": answers,
        "believed": {"label_right": label_right},
        "utility": utility,
        "thief": thief,
        "flags": [
            *flag_answers(transcript, trial, protectee),
            *flag_thief(thief, label_right, answers["label_kept"], protectee),
            *(["budget exceeded, as published"] if sent > trial.budget else []),
        ],
        "sizes": as_json(trial.sizes),
        "seconds": {
            "ask": round(asked - start, 3),
            "recover": round(recovered - asked, 3),
            "train": round(time.perf_counter() - recovered, 3),
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "hardware": hardware(protectee.pool.device),
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """What a trial ran on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "threads": torch.get_num_threads()}


def _utility(trial: Trial, protectee: Protectee, cache: Cache) -> dict[str, Any]:
    """What benign clients get, measured once for all attacks on the same defense."""
    recipe = ["utility", protectee.key, trial.defense, dict(trial.options), as_json(trial.utility), trial.seed]
    utility: dict[str, Any] = cache.facts(
        f"utility-{digest(recipe)}",
        lambda: measure_utility(trial.start_endpoint(protectee), protectee, trial.utility),
    )
    return utility


def _compare(transcript: Transcript, clean: Tensor) -> dict[str, float]:
    """How far the attacker's answers are from the clean ones."""
    if len(transcript) == 0:
        return {"honest": 0.0, "label_kept": 0.0}
    same = SAME[clean.device.type] + rounding_error(transcript.answers)
    return {
        "honest": _share((transcript.answers - clean).abs().amax(1) <= same),
        "label_kept": _share(transcript.answers.argmax(1) == clean.argmax(1)),
        **distances(clean, transcript.answers),
    }


def _share(mask: Tensor) -> float:
    return mask.double().mean().item() if len(mask) else 0.0
