"""QUEEN as one of the defenses: a guard, whose clients are the benchmark's."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from queen.batch import MeasuredBatch
from queen.bundle.bundle import Bundle
from queen.bundle.store import load_bundle, save_bundle
from queen.cache import fingerprint
from queen.core.mapping import MapRecipe
from queen.defenses.base import Defense, Endpoint, Need, Victim
from queen.errors import BundleError, RefusedError
from queen.fit.protect import ShadowRecipe, protect
from queen.guard import Guard
from queen.ledger import Judgement
from queen.options import MAX_ANSWERS, Limits, Sentinel
from queen.types import Oracle, Reply

BATCH = 512


class Guarded:
    """A guard as a service."""

    def __init__(self, bundle: Bundle, secret: bytes) -> None:
        self._guard = Guard(bundle, secret=secret)
        self._verdicts: Counter[str] = Counter()

    @property
    def verdicts(self) -> Mapping[str, int]:
        """How many queries got each verdict so far; "alarmed" and "refused" count beside the letters."""
        return dict(sorted(self._verdicts.items()))

    def client(self, name: str) -> Oracle:
        """The guard as this client sees it."""

        def answer(x: Tensor) -> Tensor:
            try:
                reply = self._guard.answer(x, client=name)
            except RefusedError as refusal:
                self._count(refusal.reply)
                raise
            self._count(reply)
            return reply.probabilities

        return answer

    def _count(self, reply: Reply) -> None:
        self._verdicts.update(verdict.value for verdict in reply.verdicts)
        self._verdicts.update({"alarmed": int(reply.alarmed.sum()), "refused": int(reply.refused.sum())})

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """A new client under a key of the attacker's own; under the sentinel also one that stands accused."""
        watched = self._guard.bundle.policy == "sentinel"
        guard = Guard(_answering(self._guard.bundle), secret=new_secret(generator))
        states: list[list[Tensor]] = [[], []] if watched else [[]]
        for said, part in zip(clean.split(BATCH), x.split(BATCH), strict=True):  # type: ignore[no-untyped-call]
            seen = guard.measure(part, said=said)
            for state, found in enumerate(states):
                judgement = _accused(seen) if state else guard.judge(_never_alarming(seen), "attacker")
                found.append(_told(guard, seen, judgement))
        return torch.stack([torch.cat(found) for found in states])


def _answering(bundle: Bundle) -> Bundle:
    """Without budgets where the sentinel would refuse: nobody can learn from what is refused."""
    if bundle.policy != "sentinel" or bundle.sentinel.on_spent != "refuse":
        return bundle
    return bundle.with_options(limits=Limits(radius=bundle.limits.radius, threshold=1e9, extra_answers=MAX_ANSWERS))


def _never_alarming(seen: MeasuredBatch) -> MeasuredBatch:
    return seen if seen.bets is None else replace(seen, bets=replace(seen.bets, bar=inf))


def _accused(seen: MeasuredBatch) -> Judgement:
    none = np.zeros(len(seen.labels), np.bool_)
    return Judgement("A" * len(none), none, ~none, none)


def _told(guard: Guard, seen: MeasuredBatch, judgement: Judgement) -> Tensor:
    try:
        return guard.respond(seen, judgement, "attacker").probabilities
    except RefusedError as refusal:
        return refusal.reply.probabilities


def new_secret(generator: torch.Generator) -> bytes:
    """A secret that a run can be repeated with."""
    numbers = torch.randint(2**62, (4,), generator=generator).tolist()
    return hashlib.sha256(repr(numbers).encode()).digest()


def _builder(policy: str) -> Callable[..., Endpoint]:
    def build(
        victim: Victim,
        generator: torch.Generator,
        *,
        radius: float = 0.02,
        threshold: float = 0.2,
        extra_answers: int = 2000,
        alpha: float = 1e-3,
        on_alarm: str = "decoy",
        on_spent: str = "refuse",
        map_epochs: int = 100,
        map_batch: int | None = None,
        shadow_models: int = 10,
        seed: int = 0,
    ) -> Endpoint:
        recipe = {"map_epochs": map_epochs, "map_batch": map_batch, "shadow_models": shadow_models, "seed": seed}
        bundle = fitted(victim, **recipe).with_options(
            policy=policy,
            limits=Limits(radius=radius, threshold=threshold, extra_answers=extra_answers),
            sentinel=Sentinel(alpha=alpha, on_alarm=on_alarm, on_spent=on_spent),
        )
        return Guarded(bundle, new_secret(generator))

    return build


def fitted(victim: Victim, **recipe: Any) -> Bundle:
    """The bundle all policies share; fitted once and kept in the victim's cache."""
    if victim.cache is None:
        return _fit(victim, **recipe)
    tensors = [*victim.model.state_dict().values(), *victim.train, *(victim.calibration or ())]
    name = f"bundle-{fingerprint(json.dumps(recipe, sort_keys=True).encode(), *tensors)}"
    folder = victim.cache.folder / name
    with victim.cache.lock(name):
        device = next(victim.model.parameters()).device
        if (folder / "bundle.json").exists():  # written last
            try:
                return load_bundle(folder, victim.model, device=device)
            except BundleError:  # damaged, or of another version: make it again
                shutil.rmtree(folder)
        save_bundle(_fit(victim, **recipe), folder)
        return load_bundle(folder, victim.model, device=device)


def _fit(victim: Victim, *, map_epochs: int, map_batch: int | None, shadow_models: int, seed: int) -> Bundle:
    guard = protect(
        victim.model,
        victim.train,
        calibration=victim.calibration,
        mapping=MapRecipe(epochs=map_epochs, batch=map_batch),
        shadows=ShadowRecipe(count=shadow_models, draw=min(5, shadow_models)),
        min_agreement=0,  # reported, not refused: a benchmark also shows where the map is poor
        input_range=None,  # attackers' images come from elsewhere, and all defenses must see the same
        seed=seed,
        progress=False,
    )
    return guard.bundle


_NEEDS: frozenset[Need] = frozenset({"x"})
DEFENSES: Mapping[str, Defense] = {
    "queen": Defense(_builder("paper"), keeps_label="no", needs=_NEEDS, stateful=True),
    "queen-strict": Defense(_builder("strict"), keeps_label="no", needs=_NEEDS, stateful=True),
    "queen-artifact": Defense(_builder("artifact"), keeps_label="no", needs=_NEEDS, stateful=True),
    "queen-sentinel": Defense(_builder("sentinel"), keeps_label="no", needs=_NEEDS | {"calibration"}, stateful=True),
}
