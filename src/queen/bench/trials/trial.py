"""One attack on one defense: how both are set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from queen.attacks.base import Knowledge, Sizes
from queen.attacks.strategies.heads import encoder_of
from queen.bench.naming import digest
from queen.bench.protectee import Protectee
from queen.bench.spec import Cell, Utility
from queen.defenses import DEFENSES
from queen.defenses.base import Endpoint
from queen.errors import HeadError


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attack on one defense with one seed: made from a `Cell` of a spec, or by `evaluate` without one."""

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
        """The trial that a cell of a spec describes."""
        spec = cell.spec
        return cls(
            column=cell.column,
            defense=cell.defense,
            query=cell.query,
            attack=cell.attack,
            budget=cell.budget,
            seed=cell.seed,
            options=cell.options,
            sizes=spec.sizes,
            utility=spec.utility,
        )

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for one purpose: the same images are asked whatever the defense, and so on."""
        return torch.Generator().manual_seed(int(digest([self.seed, purpose]), 16) % 2**63)

    def start_endpoint(self, protectee: Protectee) -> Endpoint:
        """The victim behind the defense, with no client on record yet."""
        return DEFENSES[self.defense].start(protectee.victim, self.generator("defense"), **self.options)


def make_knowledge(trial: Trial, protectee: Protectee, endpoint: Endpoint) -> Knowledge:
    """All that attackers may know in a trial; each attack takes what it declares."""
    defense = DEFENSES[trial.defense]

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
        schedule=protectee.thief_schedule,
        sizes=trial.sizes,
        simulate=endpoint.simulate,
        clean=protectee.victim.clean,
        benign=protectee.benign,
        rebuild=rebuild,
        encoder=_victims_encoder(protectee),
        cache=protectee.victim.cache,
        key=protectee.key,
        defense_key=digest([trial.defense, dict(trial.options), trial.seed]),
        seed=trial.seed,
    )


def _victims_encoder(protectee: Protectee) -> nn.Module | None:
    """The victim without its head; None where it has none that can be taken off."""
    try:
        return encoder_of(protectee.victim.model, protectee.pool[:2])
    except HeadError:
        return None
