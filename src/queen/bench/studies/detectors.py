"""The study `detectors`: what a thief is answered before the alarm, where all accuse as few benign clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from scipy.special import betaincinv
from torch import Tensor

from queen.attacks import ATTACKS, QUERIES, find_queries
from queen.attacks.base import CountedOracle
from queen.attacks.strategies.disguise import is_cover
from queen.bench.orders import OrderReplay
from queen.bench.spec import Spec
from queen.bench.studies.base import Study, StudyContext
from queen.bench.studies.clients import parse_kind, simulate_clients
from queen.bench.studies.detectors_view import LEVEL, draw, to_markdown
from queen.bench.studies.needs import QUERY, StudyNeeds, find_method
from queen.bench.trials.trial import Trial, make_knowledge
from queen.defenses import DEFENSES
from queen.defenses.base import Endpoint
from queen.defenses.detectors.base import DetectorEndpoint, FalseAlarms
from queen.defenses.queen import GuardedEndpoint
from queen.errors import OptionError, RefusedError
from queen.types import Oracle

REFUSE = "refuse"
COVERS: Mapping[int, str] = {0: "direct", 1: "cover_1", 3: "cover_3", 10: "cover_10"}  # the attacks that ask so


@dataclass(frozen=True, kw_only=True)
class Detectors:
    """Which columns face which query strategies and which benign clients, at which rate of false accusations.

    Thieves with the queries `knockoff` are tried with every number of `covers`: so many images of the victim's kind are
    sent before each of their own, out of the same budget; 0 is none. The rate is measured for every one of the `kinds`
    of benign clients (`queen.bench.studies.clients`), with `clients` of them, who send `life` test images each, or as
    many as there are of their kind. Thresholds are chosen for the same life; None is a quarter of the calibration
    images.
    """

    defenses: tuple[str, ...] = ("prada", "seat", "d_add", "mmd", "queen-sentinel")
    queries: tuple[str, ...] = ("knockoff", "jbda_tr")
    covers: tuple[int, ...] = (0,)
    kinds: tuple[str, ...] = ("mixed",)
    alpha: float = 0.01
    clients: int = 200
    life: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Way:
    """How a thief asks: a query strategy, and how many cover images go before each of its own."""

    query: str
    cover: int

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.query}, cover {self.cover}:1" if self.cover else self.query


def list_ways(parameters: Detectors) -> Iterator[Way]:
    """All ways to ask; only `knockoff` goes with cover."""
    for query in parameters.queries:
        for cover in parameters.covers if query == QUERY else (0,):
            yield Way(query, cover)


def measure(context: StudyContext, parameters: Detectors) -> dict[str, Any]:
    """One row per column: alarms and honest answers of every way to ask and seed, and benign clients accused."""
    life, available = _choose_life(context.spec, parameters), len(context.protectee.test[0])
    if life > available:
        raise OptionError(f"life must be at most the number of test images, {available}, got {life}: lower it")
    rows = {name: _row(context, parameters, life, name) for name in context.each("detectors", parameters.defenses)}
    covers = {way.name: way.cover for way in list_ways(parameters)}
    return {"rows": rows, "covers": covers, "budget": context.spec.budget, "life": life}


def _choose_life(spec: Spec, parameters: Detectors) -> int:
    """How many queries benign clients send, the same for all columns; refused where a detector would refuse it."""
    return FalseAlarms(alpha=parameters.alpha, life=parameters.life).choose_life(spec.protectee.calibration)


def _row(context: StudyContext, parameters: Detectors, life: int, name: str) -> dict[str, Any]:
    """One column; every run and every kind of client is a part of its own in the cache."""
    known = DEFENSES[find_method(context.spec, name)].options
    rate = {"alpha": parameters.alpha, "life": life}
    options = {option: value for option, value in rate.items() if option in known}  # the sentinel's rate has no end

    def attack(way: Way, seed: int) -> Any:
        trial = context.make_trial(name, seed=seed, query=way.query, attack=COVERS[way.cover], options=options)
        depends_on = [name, options, way.query, way.cover, seed]
        return context.cached("detectors", depends_on, partial(_attack, context, trial, way.cover))

    def accuse(kind: str) -> Any:
        trial = context.make_trial(name, seed=parameters.seeds[0], options=options)
        depends_on = [name, options, kind, parameters.clients, life, parameters.seeds[0]]
        return context.cached("benign", depends_on, partial(_accuse, context, trial, kind, parameters.clients, life))

    return {
        "attacks": {way.name: [attack(way, seed) for seed in parameters.seeds] for way in list_ways(parameters)},
        "benign": {kind: accuse(kind) for kind in parameters.kinds},
    }


class AccusedError(Exception):
    """Ends an attack at the alarm: what an attacker does afterwards is not the matter of this study."""


def _attack(context: StudyContext, trial: Trial, cover: int) -> dict[str, Any]:
    """The query at which the thief is accused (None: never), and how many honest answers it had by then.

    Those to its own images and those to the cover are counted apart. What is answered is honest: columns that answer
    otherwise are refused.
    """
    endpoint = trial.start_endpoint(context.protectee)
    answered: list[bool] = []
    alarm: int | None = None

    def open_account(name: str) -> Oracle:
        oracle = endpoint.client(name)

        def ask(x: Tensor) -> Tensor:
            nonlocal alarm
            try:
                answers = oracle(x)
            except RefusedError as refusal:
                alarmed, before = refusal.reply.alarmed, len(answered)
                answered.extend((~refusal.reply.refused).tolist())
                if alarmed.any():
                    alarm = before + int(alarmed.argmax()) + 1
                    raise AccusedError from refusal
                raise
            answered.extend([True] * len(x))
            return answers

        return ask

    oracle = CountedOracle(open_account, trial.budget, trial.sizes.ask_batch)
    knowledge = make_knowledge(trial, context.protectee, endpoint)
    with suppress(AccusedError):
        QUERIES[trial.query](oracle, ATTACKS[trial.attack], knowledge, trial.budget, trial.generator("query"))
    honest, covering = torch.tensor(answered), is_cover(len(answered), cover)
    return {"alarm": alarm, "honest": int((honest & ~covering).sum()), "cover": int((honest & covering).sum())}


def _accuse(context: StudyContext, trial: Trial, kind: str, clients: int, life: int) -> dict[str, Any]:
    """How many benign clients of a kind are accused, and how many queries they send."""
    endpoint = trial.start_endpoint(context.protectee)
    generator = context.generator(trial.seed, "benign clients")
    accused, lengths, images, alarm_at = 0, [], None, None
    for client in simulate_clients(context.protectee, kind, clients=clients, life=life, generator=generator):
        if alarm_at is None or client.images is not images:
            images, alarm_at = client.images, replay(endpoint, client.images)
        accused += alarm_at(client.rows) is not None
        lengths.append(len(client.rows))
    return {
        "accused": accused,
        "clients": len(lengths),
        "upper": upper_limit(accused, len(lengths)),
        "queries": [min(lengths), max(lengths)],
    }


def replay(endpoint: Endpoint, x: Tensor) -> Callable[[Tensor], int | None]:
    """Images measured once for many new clients: takes the rows that one sends, returns the query that accuses it."""
    if isinstance(endpoint, GuardedEndpoint):
        return OrderReplay(endpoint.guard, x).alarm_at
    if isinstance(endpoint, DetectorEndpoint):
        return endpoint.replay(x)
    raise OptionError(f"expected an endpoint that accuses clients, got {type(endpoint).__name__}")


def upper_limit(hits: int, trials: int, level: float = LEVEL) -> float:
    """The upper confidence limit of a share of which `hits` of `trials` were drawn (Clopper-Pearson)."""
    return 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, level))


def _needs(spec: Spec, parameters: Detectors) -> StudyNeeds:
    for query in parameters.queries:
        find_queries(query)
    for kind in parameters.kinds:
        parse_kind(kind)
    for cover in parameters.covers:
        if cover not in COVERS:
            known = ", ".join(map(str, COVERS))
            raise OptionError(f"no attack sends {cover} cover images before each of its own; known: {known}")
    if any(parameters.covers) and QUERY not in parameters.queries:
        raise OptionError(f"only the queries '{QUERY}' go with cover: add them, or leave out covers")
    _choose_life(spec, parameters)
    for name in parameters.defenses:
        _check_column(spec, name)
    return StudyNeeds(defenses=parameters.defenses, attacks=[COVERS[cover] for cover in parameters.covers])


def _check_column(spec: Spec, name: str) -> None:
    """Refuse a column that accuses nobody, or that answers otherwise than honestly or not at all."""
    defense = DEFENSES[find_method(spec, name)]
    options = {**defense.options, **spec.defenses.get(name, {})}
    if "alpha" not in options or "calibration" not in defense.needs:
        raise OptionError(f"defense '{name}' accuses nobody: this study compares those with a rate of false alarms")
    for option in ("on_alarm", "on_spent"):
        answer = options.get(option, REFUSE)
        if answer != REFUSE:
            raise OptionError(
                f"expected defenses that refuse the accused, since this study sees alarms by refusals, got '{name}' "
                f"with {option} {answer}: leave it out, or give it {option} {REFUSE}"
            )


STUDY = Study(Detectors, measure, draw, to_markdown, _needs)
