"""What a study is: a measurement with parameters, made on the protectee of a benchmark spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch

from queen.attacks import find_attack
from queen.bench.code import TRYING
from queen.bench.naming import as_json, digest
from queen.bench.parsing import SpecError, make_checked, read_yaml
from queen.bench.protectee import Labelled, Protectee
from queen.bench.spec import VERSION, Spec, Utility, make_spec, read_spec
from queen.bench.studies.needs import FOREIGN, OWN_KIND, QUERY, StudyNeeds, check_base, check_pool, find_method
from queen.bench.trials.cell import run_trial
from queen.bench.trials.trial import Trial
from queen.bundle.bundle import Bundle
from queen.cache import Cache, code_version
from queen.defenses import DEFENSES
from queen.defenses.queen import load_or_fit
from queen.progress import Progress

Parameters = TypeVar("Parameters")
Item = TypeVar("Item")
Result = Mapping[str, Any]
# The modules that a part of a study's result depends on.
CODE = (*TRYING, "queen.bench.studies")


def limit_budget(trial: Trial, protectee: Protectee) -> Trial:
    """The trial with a budget that buys no more images than the pool has, at what its attack asks per image."""
    most = len(protectee.pool) * find_attack(trial.attack).cost(trial.sizes)
    return replace(trial, budget=min(trial.budget, most))


@dataclass(frozen=True)
class Study(Generic[Parameters]):
    """How a study is made and shown.

    `measure(context, parameters)` returns plain JSON; `draw` and `to_markdown` make a PNG and Markdown of a result.
    `needs(spec, parameters)` says what it uses of its base. `takes_times`: it measures how long something takes, so
    nothing else may run meanwhile.
    """

    parameters: type[Parameters]
    measure: Callable[[StudyContext, Parameters], dict[str, Any]]
    draw: Callable[[Result], bytes]
    to_markdown: Callable[[Result], str]
    needs: Callable[[Spec, Parameters], StudyNeeds]
    takes_times: bool = False


@dataclass(frozen=True)
class StudyContext:
    """What every study works with: a benchmark spec, its protectee and thief, a cache and a progress display.

    Several processes that make the same study share the work if each has another `begin`, the place in every list, from
    0 to 1, where it starts: what one has computed, the others find in the cache.
    """

    spec: Spec
    protectee: Protectee
    cache: Cache
    show: Progress
    begin: float = 0.0

    def protectee_for(self, pool: str) -> Protectee:
        """The protectee with the attacker's images: those of the spec ("foreign") or of the victim's own kind."""
        check_pool(self.spec, pool)
        if pool == FOREIGN:
            return self.protectee
        x, y = self.own_kind_images()
        return replace(self.protectee, key=f"{self.protectee.key}-own", pool=x, pool_labels=y)

    def own_kind_images(self) -> Labelled:
        """Images like the victim's that did not train it."""
        check_pool(self.spec, OWN_KIND)
        return cast(Labelled, self.protectee.benign)  # the spec sets them aside

    def fit_bundle(self, *, use_cache: bool = True) -> Bundle:
        """The bundle that the benchmark's own QUEEN fits, so that both share one in the cache."""
        options = self.spec.defenses.get("queen", {})
        names = ("map_epochs", "map_batch", "shadow_models", "shadow_kind", "seed")
        recipe = {name: options.get(name, DEFENSES["queen"].options[name]) for name in names}
        victim = self.protectee.victim if use_cache else replace(self.protectee.victim, cache=None)
        return load_or_fit(victim, **recipe)

    def make_trial(self, defense: str, *, seed: int, options: Result | None = None, **changes: Any) -> Trial:
        """A trial against a column of the spec, or any other defense; `options` override the column's own."""
        column = dict(self.spec.defenses.get(defense, {}))
        column.pop("defense", None)
        method = find_method(self.spec, defense)
        find_attack(changes.get("attack", "direct"))
        fields: dict[str, Any] = {"query": QUERY, "attack": "direct", "budget": self.spec.budget}
        fields |= {"sizes": self.spec.sizes, "utility": self.spec.utility, **changes}
        return Trial(column=defense, defense=method, options={**column, **(options or {})}, seed=seed, **fields)

    def steal(self, trial: Trial, pool: str) -> dict[str, Any]:
        """The result of one trial, as `bench run` makes it; the budget is at most what the pool can use up."""
        protectee = self.protectee_for(pool)
        return run_trial(limit_budget(trial, protectee), protectee, self.cache)

    def steal_all(
        self, defense: str, pool: str, attacks: Sequence[str], seeds: Sequence[int], **changes: Any
    ) -> dict[str, list[dict[str, Any]]]:
        """The results of every attack against one defense, one per seed; `changes` are those of `make_trial`."""
        return {
            attack: [self.steal(self.make_trial(defense, seed=seed, attack=attack, **changes), pool) for seed in seeds]
            for attack in attacks
        }

    def cached(self, name: str, depends_on: object, compute: Callable[[], Any]) -> Any:
        """A part of a study's result, computed once; `depends_on` is everything it depends on beside the spec."""
        device = str(self.protectee.pool.device.type)
        key = digest([VERSION, code_version(*CODE), self.protectee.key, base_config(self.spec), device, depends_on])
        return self.cache.facts(f"study-{name}-{key}", compute)

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a progress bar; from the place on where this process begins."""
        listed = list(items)
        first = int(self.begin * len(listed))
        return self.show.each(name, listed[first:] + listed[:first], len(listed))

    def generator(self, seed: int, purpose: str) -> torch.Generator:
        """Random numbers for one purpose, the same ones as in the benchmark."""
        return self.make_trial("none", seed=seed).generator(purpose)


FEW_CLIENTS = Utility(clients=10)  # where a study is not about benign clients


def base_config(spec: Spec) -> dict[str, Any]:
    """The part of a benchmark spec that a study's result depends on."""
    names = ("name", "protectee", "thief", "budget", "sizes", "utility", "defenses")
    return {name: as_json(getattr(spec, name)) for name in names}


def read_study(study: Study[Parameters], path: Path) -> tuple[Spec, Parameters]:
    """The benchmark spec, checked that the study can use it, and the parameters that a study's YAML file gives.

    The file names a spec as `base`, by its path relative to the file, beside the parameters. A benchmark spec may be
    given instead; all parameters then have their defaults.
    """
    content = read_yaml(path)
    if isinstance(content, Mapping) and "protectee" in content:
        return _checked(study, make_spec(content, str(path)), study.parameters())
    if not isinstance(content, Mapping):
        raise SpecError(f"{path}: expected keys and values, got {type(content).__name__}")
    if not isinstance(content.get("base"), str):
        raise SpecError(f"{path}: key 'base' is missing: the path of a benchmark spec, such as ../smoke.yaml")
    own = {key: value for key, value in content.items() if key != "base"}
    parameters = make_checked(study.parameters, own, str(path))
    empty = next((key for key, value in vars(parameters).items() if value == ()), None)
    if empty is not None:
        raise SpecError(f"{path}: {empty}: expected at least one, got none")
    return _checked(study, read_spec(path.parent / content["base"]), parameters)


def _checked(study: Study[Parameters], spec: Spec, parameters: Parameters) -> tuple[Spec, Parameters]:
    check_base(spec, study.needs(spec, parameters))
    return spec.for_seed(spec.seeds[0]), parameters  # a study has one victim: the first, where each seed has its own
