"""QUEEN as one of the defenses: a guard behind the interface that all defenses share."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.bundle.store import load_bundle, save_bundle
from queen.cache import code_version, fingerprint
from queen.core.mapping import MapRecipe
from queen.defenses.base import Defense, Endpoint, Need, Victim, nearest
from queen.errors import BundleError, OptionError, RefusedError
from queen.fit.protect import protect
from queen.fit.shadows import ShadowRecipe
from queen.guard import Guard
from queen.ledger import Judgement, MemoryLedger
from queen.ledger.clock import LedgerClock
from queen.options import MAX_ANSWERS, Limits, Sentinel, default_limits
from queen.perturber import MeasuredBatch
from queen.types import Oracle, Reply
from queen.zoo import NETWORKS

BATCH = 512
FITTING = ("queen.bundle", "queen.core", "queen.fit", "queen.guard", "queen.ledger", "queen.options", "queen.perturber",
           "queen.policy", "queen.recipe", "queen.sentinel", "queen.types", "queen.zoo")  # fmt: skip
"""The modules that a fitted bundle depends on."""


@dataclass(frozen=True)
class SimulatedQueries:
    """Queries x (n, ...), how often they had been changed in place, and their features (n, D)."""

    x: Tensor
    version: int | None
    features: Tensor

    def is_for(self, x: Tensor) -> bool:
        """Whether these are the features of x: the very same tensor, unchanged since."""
        return self.x is x and self.version is not None and self.version == _version(x)


def _version(x: Tensor) -> int | None:
    """How often a tensor has been changed in place; None where torch does not count."""
    return None if x.is_inference() else x._version


class GuardedEndpoint:
    """A guard as an endpoint that counts its verdicts."""

    def __init__(self, bundle: Bundle, secret: bytes, make_guard: type[Guard] = Guard) -> None:
        self._guard, self._make_guard = make_guard(bundle, ledger=_one_day(), secret=secret), make_guard
        self._verdicts: Counter[str] = Counter(alarmed=0, refused=0, honest=0)
        self._simulated: SimulatedQueries | None = None

    @property
    def guard(self) -> Guard:
        """The guard that answers."""
        return self._guard

    @property
    def verdicts(self) -> Mapping[str, int]:
        """How many queries got each verdict so far, by its letter; also how many were "alarmed", "refused" and
        "honest"."""
        return dict(sorted(self._verdicts.items()))

    def client(self, name: str) -> Oracle:
        """The guard's answers to this client."""

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
        masks = {"alarmed": reply.alarmed, "refused": reply.refused, "honest": reply.honest}
        self._verdicts.update({name: int(mask.sum()) for name, mask in masks.items()})

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """Answers to a new client, under another secret; also those to an accused client, where the accused get any."""
        bundle = self._guard.bundle
        has_accused = bundle.policy == "sentinel" and bundle.sentinel.on_alarm != "refuse"
        guard = self._make_guard(_without_refusals(bundle), secret=draw_secret(generator))
        states: list[list[Tensor]] = [[], []] if has_accused else [[]]
        features = self._features_of(x)
        for part_clean, part, part_features in zip(
            clean.split(BATCH),  # type: ignore[no-untyped-call]
            x.split(BATCH),  # type: ignore[no-untyped-call]
            features.split(BATCH),  # type: ignore[no-untyped-call]
            strict=True,
        ):
            batch = guard.measure(part, said=part_clean, features=part_features)
            for state, answers in enumerate(states):
                judgement = _accuse(batch) if state else guard.judge(_without_alarm(batch), "attacker")
                answers.append(_respond(guard, batch, judgement))
        return torch.stack([torch.cat(answers) for answers in states])

    def _features_of(self, x: Tensor) -> Tensor:
        """The model's features (n, D) of x: recovery attacks simulate many passes over one stream, whose features do
        not depend on what the model is said to have said. Those of the latest stream are kept."""
        if self._simulated is None or not self._simulated.is_for(x):
            parts = [self._guard.measure(part).features for part in x.split(BATCH)]  # type: ignore[no-untyped-call]
            self._simulated = SimulatedQueries(x, _version(x), torch.cat(parts))
        return self._simulated.features


def _one_day() -> MemoryLedger:
    """A ledger on which no budget renews: all queries of a trial come in one day, however long it takes to run."""
    return MemoryLedger(clock=LedgerClock(wall=lambda: 0.0, monotonic=lambda: 0.0))


def _without_refusals(bundle: Bundle) -> Bundle:
    """The bundle with endless budgets if the sentinel refuses spent ones: nobody learns from what is refused."""
    if bundle.policy != "sentinel" or bundle.sentinel.on_spent != "refuse":
        return bundle
    return bundle.with_options(limits=Limits(radius=bundle.limits.radius, threshold=1e9, extra_answers=MAX_ANSWERS))


def _without_alarm(batch: MeasuredBatch) -> MeasuredBatch:
    """The batch as if no row placed a bet."""
    return batch if batch.bets is None else replace(batch, bets=replace(batch.bets, size=0 * batch.bets.size))


def _accuse(batch: MeasuredBatch) -> Judgement:
    none = np.zeros(len(batch.labels), np.bool_)
    return Judgement("A" * len(none), none, ~none, none)


def _respond(guard: Guard, batch: MeasuredBatch, judgement: Judgement) -> Tensor:
    try:
        return guard.respond(batch, judgement, "attacker").probabilities
    except RefusedError as refusal:
        return refusal.reply.probabilities


def draw_secret(generator: torch.Generator) -> bytes:
    """A secret drawn from `generator`, so that a run can be repeated."""
    numbers = torch.randint(2**62, (4,), generator=generator).tolist()
    return hashlib.sha256(repr(numbers).encode()).digest()


def _builder(policy: str) -> Callable[..., Endpoint]:
    """Builds an endpoint under a policy.

    The radius is relative to each class's spread, or, as the paper's, in units of the map: `absolute_radius` takes the
    place of `radius`. `shadow_kind` is "head", "network", or the name of a network in `queen.zoo`; `draw` of the
    `shadow_models` answer a query (None: five, or all where there are fewer). `keep_label` reverses gradients without
    changing a label. The other options are those of `Limits`, `Sentinel` and `MapRecipe`, with the policy's own limits
    where none are named.
    """
    usual = default_limits(policy)

    def build(
        victim: Victim,
        generator: torch.Generator,
        *,
        radius: float | tuple[float, ...] = usual.radius,
        absolute_radius: float | None = None,
        threshold: float | str = usual.threshold,
        extra_answers: int | str = usual.extra_answers,
        alpha: float = 1e-3,
        on_alarm: str = "refuse",
        on_spent: str = "refuse",
        after_alarm: int | None = Sentinel.after_alarm,
        digits: int | None = Sentinel.digits,
        map_epochs: int = 100,
        map_batch: int | None = None,
        shadow_models: int = 10,
        shadow_kind: str = "head",
        draw: int | None = None,
        keep_label: bool = False,
        seed: int = 0,
    ) -> Endpoint:
        # Made first: a wrong number is refused before the fit. A radius in the map's units then gets its map.
        limits = Limits(
            radius=radius if absolute_radius is None else absolute_radius,
            threshold=threshold,
            extra_answers=extra_answers,
        )
        fitted = load_or_fit(
            victim,
            map_epochs=map_epochs,
            map_batch=map_batch,
            shadow_models=shadow_models,
            shadow_kind=shadow_kind,
            seed=seed,
        )
        if absolute_radius is not None:
            limits = replace(limits, radius=fitted.geometry.relative_radii(absolute_radius))
        bundle = fitted.with_options(
            policy=policy,
            draw=fitted.draw if draw is None else draw,
            keep_label=keep_label,
            limits=limits,
            sentinel=Sentinel(
                alpha=alpha, on_alarm=on_alarm, on_spent=on_spent, after_alarm=after_alarm, digits=digits
            ),
        )
        return GuardedEndpoint(bundle, draw_secret(generator))

    return build


def load_or_fit(victim: Victim, **recipe: Any) -> Bundle:
    """The bundle of a recipe, which policies share: from the victim's cache, or fitted and stored there."""
    if victim.cache is None:
        return _fit(victim, **recipe)
    tensors = [*victim.model.state_dict().values(), *victim.train, *(victim.calibration or ())]
    code = code_version(*FITTING)
    name = f"bundle-{fingerprint(json.dumps(recipe, sort_keys=True).encode(), code.encode(), *tensors)}"
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


def _fit(
    victim: Victim,
    *,
    map_epochs: int,
    map_batch: int | None,
    shadow_models: int,
    shadow_kind: str,
    seed: int,
    **training: Any,
) -> Bundle:
    guard = protect(
        victim.model,
        victim.train,
        calibration=victim.calibration,
        policy="paper",  # the defense chooses its own
        mapping=MapRecipe(epochs=map_epochs, batch=map_batch),
        shadows=replace(_shadow_recipe(shadow_kind, shadow_models), **training),
        min_agreement=0,  # reported, not refused: a benchmark also shows where the map is poor
        input_range=None,  # attackers' images come from elsewhere, and all defenses must see the same
        seed=seed,
        progress=False,
    )
    return guard.bundle


def _shadow_recipe(kind: str, count: int) -> ShadowRecipe:
    """Shadows of a kind, "head" or "network", or networks of the zoo by name; five answer a query, or all if fewer."""
    known: dict[str, ShadowRecipe] = {
        "head": ShadowRecipe(),
        "network": ShadowRecipe(kind="network"),
        **{name: ShadowRecipe(kind="network", networks=(name,)) for name in NETWORKS},
    }
    if kind not in known:
        raise OptionError(f"no shadow_kind '{kind}'{nearest(kind, known)}")
    return replace(known[kind], count=count, draw=min(known[kind].draw, count))


_NEEDS: frozenset[Need] = frozenset({"x"})
_queen = partial(
    Defense,
    keeps_label="no",
    needs=_NEEDS,
    stateful=True,
    added=frozenset({"absolute_radius", "shadow_kind", "draw", "keep_label"}),
)
DEFENSES: Mapping[str, Defense] = {
    "queen": _queen(_builder("paper")),
    "queen-strict": _queen(_builder("strict")),
    "queen-sentinel": _queen(_builder("sentinel"), needs=_NEEDS | {"calibration"}),
}
