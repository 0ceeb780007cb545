"""How a trial's attacker asks; attacks that send the same queries to the same defense share the answers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from queen.attacks import ATTACKS, QUERIES
from queen.attacks.base import CountedOracle, Knowledge, Transcript, ask_from_one_account
from queen.attacks.queries.knockoff import draw_rows
from queen.bench.code import defending_code
from queen.bench.naming import digest
from queen.bench.protectee import Protectee
from queen.bench.trials.trial import Trial, make_knowledge
from queen.cache import Cache, fingerprint
from queen.defenses.base import Endpoint


@dataclass(frozen=True)
class Interrogation:
    """What a trial's attacker knew and got, how many queries it sent, and what the defense counted of them.

    `seconds` is the time that asking took, now or, where the answers are `reused`, when they were given.
    """

    endpoint: Endpoint
    knowledge: Knowledge
    transcript: Transcript
    sent: int
    verdicts: Mapping[str, int]
    seconds: float
    reused: bool = False


def interrogate(trial: Trial, protectee: Protectee, cache: Cache | None = None) -> Interrogation:
    """Start the defense and let the attacker ask until its budget is spent; with a cache, equal queries once only."""
    endpoint = trial.start_endpoint(protectee)
    knowledge = make_knowledge(trial, protectee, endpoint)
    if cache is not None and sends_plain_images(trial):
        return _share(trial, protectee, endpoint, knowledge, cache)
    start, oracle = time.perf_counter(), _make_oracle(trial, endpoint)
    transcript = QUERIES[trial.query](oracle, ATTACKS[trial.attack], knowledge, trial.budget, trial.generator("query"))
    seconds = round(time.perf_counter() - start, 3)
    return Interrogation(endpoint, knowledge, transcript, oracle.used, endpoint.verdicts, seconds)


def sends_plain_images(trial: Trial) -> bool:
    """Whether the attack sends random images of the pool from one account, whatever it does with the answers."""
    attack = ATTACKS[trial.attack]
    return trial.query == "knockoff" and attack.ask is ask_from_one_account and attack.choose is None


def _make_oracle(trial: Trial, endpoint: Endpoint) -> CountedOracle:
    overspend = ATTACKS[trial.attack].overspend(trial.sizes)
    return CountedOracle(endpoint.client, trial.budget * overspend, trial.sizes.ask_batch)


def _share(trial: Trial, protectee: Protectee, endpoint: Endpoint, knowledge: Knowledge, cache: Cache) -> Interrogation:
    """The answers to the images that all such attacks send: from the cache, or asked for and stored there."""
    rows = draw_rows(ATTACKS[trial.attack], knowledge, trial.budget, trial.generator("query"))
    recipe = [protectee.key, trial.defense, dict(trial.options), trial.sizes.ask_batch, trial.seed]
    name = f"answers-{digest([*recipe, fingerprint(rows), defending_code()])}"
    reused = True

    def ask() -> dict[str, Tensor]:
        nonlocal reused
        reused, start = False, time.perf_counter()
        answers, answered = _make_oracle(trial, endpoint).ask(protectee.pool[rows])
        facts = {"verdicts": dict(endpoint.verdicts), "seconds": round(time.perf_counter() - start, 3)}
        return {"answers": answers[answered], "answered": answered, "facts": _as_bytes(facts)}

    stored = cache.tensors(name, ask)
    facts = json.loads(bytes(stored["facts"].tolist()))
    asked = rows[stored["answered"].to(rows.device)]
    transcript = Transcript(protectee.pool[asked], stored["answers"].to(protectee.pool.device))
    return Interrogation(endpoint, knowledge, transcript, len(rows), facts["verdicts"], facts["seconds"], reused=reused)


def _as_bytes(facts: Mapping[str, Any]) -> Tensor:
    """JSON as a tensor, so that it lies in one file with the answers it belongs to."""
    return torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
