"""One run: a thief asks a defended victim, trains, and is tried; everything about it that a table may need."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from queen.attacks import ATTACKS, QUERIES
from queen.attacks.base import Attack, CountedOracle, Knowledge, Sizes, Transcript
from queen.bench.protectee import Protectee
from queen.bench.spec import VERSION, Cell, Utility, as_json, digest
from queen.bench.utility import distances, measure_utility
from queen.cache import Cache, fingerprint
from queen.core.split import run_model
from queen.defenses import DEFENSES
from queen.defenses.base import Defense, Endpoint
from queen.defenses.queen import Guarded
from queen.training import collapsed

# Answers closer than this are equal; on a GPU they change a little with the batch they are computed in.
SAME: Mapping[str, float] = {"cpu": 1e-6, "cuda": 1e-4}
HONEST = 0.99  # share of right labels from which a thief must learn something
LUCK = 0.05  # above chance
LOST = 0.5  # share of the right labels that a recovery attack must not lose
LOOKS = 30  # times a thief is tried while it trains
PROBE = 32  # queries that are asked twice


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run against a protectee."""

    column: str
    defense: str
    query: str
    attack: str
    budget: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    utility: Utility = field(default_factory=Utility)

    @classmethod
    def of(cls, cell: Cell) -> Trial:
        """The run of a cell of a spec."""
        spec = cell.spec
        return cls(
            column=cell.column,
            defense=cell.defense,
            query=cell.query,
            attack=cell.attack,
            budget=spec.budget,
            seed=cell.seed,
            options=cell.options,
            sizes=spec.sizes,
            utility=spec.utility,
        )

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for one purpose: the same images are asked whatever the defense, and so on."""
        return torch.Generator().manual_seed(int(digest([self.seed, purpose]), 16) % 2**63)


def run_trial(trial: Trial, protectee: Protectee, cache: Cache) -> dict[str, Any]:
    """Everything measured, as plain JSON."""
    start = time.perf_counter()
    defense, attack = DEFENSES[trial.defense], ATTACKS[trial.attack]
    utility = _utility(trial, protectee, cache)
    service = _serve(trial, protectee)
    desk = CountedOracle(service.client, trial.budget * attack.overspend(trial.sizes), trial.sizes.ask_batch)
    knowledge = know(trial, protectee, service, defense)
    found = QUERIES[trial.query](desk, attack, knowledge, trial.budget, trial.generator("query"))
    verdicts = service.verdicts if isinstance(service, Guarded) else {}
    asked = time.perf_counter()
    believed = attack.believe(found, knowledge, trial.generator("believe"))
    recovered = time.perf_counter()
    clean = protectee.victim.clean(found.x)
    label_right = _share(believed.answers.argmax(1) == protectee.victim.clean(believed.x).argmax(1))
    thief = _thief(attack, believed, knowledge, trial, protectee, cache, should_learn=label_right > HONEST)
    answers = _answers(found, clean)
    flags = [
        *_answer_flags(found, defense, service, trial, protectee),
        *_thief_flags(thief, label_right, answers["label_kept"], protectee),
        *(["budget exceeded, as published"] if desk.used > trial.budget else []),
    ]
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
        "queries": {"budget": trial.budget, "sent": desk.used, "answered": len(found)},
        "verdicts": {name: count / desk.used for name, count in verdicts.items()},
        "answers": answers,
        "believed": {"label_right": label_right},
        "utility": utility,
        "thief": thief,
        "flags": flags,
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
    """What it ran on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "threads": torch.get_num_threads()}


def know(trial: Trial, protectee: Protectee, service: Endpoint, defense: Defense) -> Knowledge:
    """What attackers may know here; each attack takes what it declares."""

    def rebuild(model: nn.Module, x: Tensor, labels: Tensor, generator: torch.Generator) -> Endpoint:
        third = max(1, len(x) // 3)
        own = replace(
            protectee.victim, model=model, train=(x[third:], labels[third:]), calibration=(x[:third], labels[:third])
        )
        return defense.start(replace(own, cache=None), generator, **trial.options)

    return Knowledge(
        classes=protectee.classes,
        pool=protectee.pool,
        pool_labels=protectee.pool_labels,
        make_thief=protectee.make_thief,
        schedule=protectee.schedule,
        sizes=trial.sizes,
        keeps_label=defense.keeps_label,
        simulate=service.simulate,
        clean=protectee.victim.clean,
        benign=protectee.benign,
        rebuild=rebuild,
        cache=protectee.victim.cache,
        key=protectee.key,
        seed=trial.seed,
    )


def _serve(trial: Trial, protectee: Protectee) -> Endpoint:
    """The victim behind its defense, with nobody known yet."""
    return DEFENSES[trial.defense].start(protectee.victim, trial.generator("defense"), **trial.options)


def _utility(trial: Trial, protectee: Protectee, cache: Cache) -> dict[str, Any]:
    what = ["utility", protectee.key, trial.defense, dict(trial.options), as_json(trial.utility), trial.seed]
    found: dict[str, Any] = cache.facts(
        f"utility-{digest(what)}", lambda: measure_utility(_serve(trial, protectee), protectee, trial.utility)
    )
    return found


def _thief(
    attack: Attack,
    believed: Transcript,
    knowledge: Knowledge,
    trial: Trial,
    protectee: Protectee,
    cache: Cache,
    *,
    should_learn: bool,
) -> dict[str, Any]:
    """Train a thief and try it after every epoch. Equal beliefs give equal thieves, so each is trained once."""
    if len(believed) == 0:
        return {"accuracy": None, "epochs": {}, "why": "nothing was answered"}
    method = [attack.learn.__module__, attack.learn.__qualname__]
    blank = protectee.make_thief(torch.Generator().manual_seed(0))
    schedule, made = as_json(knowledge.schedule), fingerprint(repr(blank).encode(), *blank.state_dict().values())
    what = [protectee.key, method, schedule, made, trial.seed, as_json(trial.sizes)]
    name = f"thief-{digest([*what, fingerprint(believed.x, believed.answers)])}"
    found: dict[str, Any] = cache.facts(
        name, lambda: _trained(attack, believed, knowledge, trial, protectee, should_learn=should_learn)
    )
    return found


def _trained(
    attack: Attack,
    believed: Transcript,
    knowledge: Knowledge,
    trial: Trial,
    protectee: Protectee,
    *,
    should_learn: bool,
) -> dict[str, Any]:
    """Before a failed training counts as a defense's success, the thief gets two more chances.

    It failed if it is NaN, collapsed to one class, or at chance though the labels it believes are right
    (`should_learn`). Then it goes on with a tenth of the rate, and with more patience.
    """
    tries = [_try(attack, believed, knowledge, trial, protectee)]
    if _failed(tries[0], protectee, should_learn=should_learn):
        plain = knowledge.schedule
        sums = believed.answers.clamp(min=0).sum(1, keepdim=True).clamp(min=1e-12)
        sane = believed.believing(believed.answers.clamp(min=0) / sums)
        for schedule in (
            replace(plain, lr=plain.lr / 10, clip=1.0),
            replace(plain, epochs=3 * plain.epochs, lr=2 * plain.lr, clip=1.0),
        ):
            if _failed(tries[-1], protectee, should_learn=should_learn):
                tries.append(_try(attack, sane, replace(knowledge, schedule=schedule), trial, protectee))
    best = max(tries, key=lambda found: (not found["nan"], found["accuracy"]))
    return {**best, "retried": len(tries) > 1, "tries": [found["accuracy"] for found in tries]}


def _failed(thief: Mapping[str, Any], protectee: Protectee, *, should_learn: bool) -> bool:
    at_chance = thief["best_accuracy"] < _chance(protectee) + LUCK
    return bool(thief["nan"] or thief["collapsed"] or (should_learn and at_chance))


def _chance(protectee: Protectee) -> float:
    return protectee.test[1].bincount().max().item() / len(protectee.test[1])


def _try(
    attack: Attack, believed: Transcript, knowledge: Knowledge, trial: Trial, protectee: Protectee
) -> dict[str, Any]:
    x, y = protectee.test
    original = protectee.victim.clean(x).argmax(1)
    total, _ = knowledge.schedule.plan(len(believed))
    stride = max(1, total // LOOKS)
    epochs: dict[str, list[float]] = {"epoch": [], "accuracy": [], "agreement": []}
    last: list[Tensor] = []
    seen = 0

    @torch.inference_mode()
    def look(thief: nn.Module) -> None:
        nonlocal seen
        seen += 1
        if seen % stride and seen < total:
            return
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            logits = torch.cat([run_model(thief, part).float() for part in x.split(1024)])  # type: ignore[no-untyped-call]
        last[:] = [logits]
        guess = logits.argmax(1)
        epochs["epoch"].append(seen)
        epochs["accuracy"].append(_share(guess == y))
        epochs["agreement"].append(_share(guess == original))

    start = time.perf_counter()
    attack.learn(believed, replace(knowledge, on_epoch=look), trial.generator("thief"))
    seconds = time.perf_counter() - start
    [logits] = last
    return {
        "accuracy": epochs["accuracy"][-1],
        "agreement": epochs["agreement"][-1],
        "best_accuracy": max(epochs["accuracy"]),
        "best_agreement": max(epochs["agreement"]),
        "epochs": epochs,
        "collapsed": collapsed(logits.argmax(1)),
        "nan": not bool(logits.isfinite().all()),
        "images_per_second": round(len(believed) * total / seconds),
        "training_seconds": round(seconds, 3),
    }


def _answers(found: Transcript, clean: Tensor) -> dict[str, float]:
    """How far the attacker's answers are from the clean ones."""
    if len(found) == 0:
        return {"honest": 0.0, "label_kept": 0.0}
    return {
        "honest": _share((found.answers - clean).abs().amax(1) <= SAME[clean.device.type]),
        "label_kept": _share(found.answers.argmax(1) == clean.argmax(1)),
        **distances(clean, found.answers),
    }


def _answer_flags(
    found: Transcript, defense: Defense, service: Endpoint, trial: Trial, protectee: Protectee
) -> list[str]:
    flags = []
    answers = found.answers
    if not answers.isfinite().all():
        flags.append("answers are NaN or infinite")
    off = ((answers.sum(1) - 1).abs() > 1e-3) | (answers < -1e-6).any(1)
    if off.any() and defense.on_simplex:
        flags.append(f"{_share(off):.0%} of the answers are off the simplex")
    if not _repeats_itself(defense, trial, protectee):
        flags.append("a query repeated in the same client state gets another answer")
    return flags


def _repeats_itself(defense: Defense, trial: Trial, protectee: Protectee) -> bool:
    """Whether a new client is told the same whatever others asked before, and twice the same by a stateless defense."""
    probe, other = protectee.pool[:PROBE], protectee.pool[-PROBE:]
    desks = [CountedOracle(_serve(trial, protectee).client, 4 * PROBE) for _ in range(2)]
    desks[1].ask(other, "somebody else")
    told = [desk.ask(probe, "probe")[0] for desk in desks]
    if not defense.stateful:
        told.append(desks[0].ask(probe, "probe")[0])
    return all(torch.equal(told[0], again) for again in told[1:])


def _thief_flags(thief: Mapping[str, Any], label_right: float, label_kept: float, protectee: Protectee) -> list[str]:
    if thief["accuracy"] is None:
        return ["no thief: nothing was answered"]
    flags = []
    if thief["nan"]:
        flags.append("the thief's answers are NaN")
    elif thief["collapsed"]:
        flags.append("the thief collapsed to one class")
    elif label_right > HONEST and thief["best_accuracy"] < _chance(protectee) + LUCK:
        flags.append("the thief is at chance though the labels it learnt from are right: its training failed")
    if label_right < (1 - LOST) * label_kept:
        flags.append("recovery made the labels much worse: the attack failed, not the thief")
    return flags


def _share(mask: Tensor) -> float:
    return mask.double().mean().item() if len(mask) else 0.0
