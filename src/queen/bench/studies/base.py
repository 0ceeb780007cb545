"""What a study is: a question with parameters, asked of the protectee of a benchmark spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from queen.attacks import find_attack
from queen.bench.cell import run_trial
from queen.bench.checked import SpecError, make_checked, read_yaml
from queen.bench.protectee import Labelled, Protectee
from queen.bench.spec import (
    VERSION,
    Spec,
    Utility,
    as_json,
    digest,
    make_spec,
    read_spec,
)
from queen.bench.trial import Trial
from queen.cache import Cache
from queen.defenses import DEFENSES
from queen.defenses.base import nearest
from queen.errors import OptionError
from queen.progress import Progress

Asked = TypeVar("Asked")
Item = TypeVar("Item")
Result = Mapping[str, Any]
POOLS = ("foreign", "own_kind")


@dataclass(frozen=True)
class Study(Generic[Asked]):
    """`measure(lab, parameters)` finds plain JSON; `draw` and `tell` make a PNG and Markdown from a whole result."""

    parameters: type[Asked]
    measure: Callable[[Lab, Asked], dict[str, Any]]
    draw: Callable[[Result], bytes]
    tell: Callable[[Result], str]


@dataclass(frozen=True)
class Lab:
    """Where studies are made: the spec they borrow protectee, thief, budget and sizes from, made real."""

    spec: Spec
    protectee: Protectee
    cache: Cache
    show: Progress

    def asking(self, pool: str) -> Protectee:
        """The protectee with the attacker's images: those of the spec ("foreign") or of the victim's own kind."""
        if pool not in POOLS:
            raise OptionError(f"no pool '{pool}'{nearest(pool, dict.fromkeys(POOLS))}")
        if pool == "foreign":
            return self.protectee
        x, y = self.own_kind()
        return replace(self.protectee, key=f"{self.protectee.key}-own", pool=x, pool_labels=y)

    def own_kind(self) -> Labelled:
        """Images like the victim's that did not train it."""
        if self.protectee.benign is None:
            raise SpecError("this study needs images of the victim's own kind: say protectee: benign: 600 in the spec")
        return self.protectee.benign

    def plan(self, defense: str, *, seed: int, options: Result | None = None, **changes: Any) -> Trial:
        """A run against a column of the spec, or any other defense; `options` go over the column's own."""
        column = dict(self.spec.defenses.get(defense, {}))
        method = str(column.pop("defense", defense))
        if method not in DEFENSES:
            raise OptionError(f"no defense '{defense}'{nearest(defense, {**self.spec.defenses, **DEFENSES})}")
        find_attack(changes.get("attack", "direct"))
        wanted: dict[str, Any] = {"query": "knockoff", "attack": "direct", "budget": self.spec.budget}
        wanted |= {"sizes": self.spec.sizes, "utility": self.spec.utility, **changes}
        return Trial(column=defense, defense=method, options={**column, **(options or {})}, seed=seed, **wanted)

    def steal(self, run: Trial, pool: str) -> dict[str, Any]:
        """One run, as `bench run` makes it; the budget is at most the pool."""
        protectee = self.asking(pool)
        return run_trial(replace(run, budget=min(run.budget, len(protectee.pool))), protectee, self.cache)

    def keep(self, name: str, what: object, find: Callable[[], Any]) -> Any:
        """What was found for one value of a study, found once; `what` is all it depends on beside the spec."""
        key = digest([VERSION, self.protectee.key, borrowed(self.spec), str(self.protectee.pool.device.type), what])
        return self.cache.facts(f"study-{name}-{key}", find)

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a progress bar."""
        listed = list(items)
        return self.show.each(name, listed, len(listed))

    def generator(self, seed: int, purpose: str) -> torch.Generator:
        """Random numbers for one purpose, the same ones as in the benchmark."""
        return self.plan("none", seed=seed).generator(purpose)


FEW = Utility(clients=10)  # where a study is not about benign clients


def borrowed(spec: Spec) -> dict[str, Any]:
    """What a study takes from a benchmark spec."""
    names = ("name", "protectee", "thief", "budget", "sizes", "utility", "defenses")
    return {name: as_json(getattr(spec, name)) for name in names}


def read_study(study: Study[Asked], path: Path) -> tuple[Spec, Asked]:
    """The benchmark spec and the parameters that a study's YAML file gives.

    The file names a spec as `base`, relative to itself, beside parameters; a benchmark spec itself does too, with all
    parameters at their defaults.
    """
    content = read_yaml(path)
    if isinstance(content, Mapping) and "protectee" in content:
        return make_spec(content, str(path)), study.parameters()
    if not isinstance(content, Mapping):
        raise SpecError(f"{path}: expected keys and values, got {type(content).__name__}")
    if not isinstance(content.get("base"), str):
        raise SpecError(f"{path}: key 'base' is missing: the path of a benchmark spec, such as ../smoke.yaml")
    own = {key: value for key, value in content.items() if key != "base"}
    parameters = make_checked(study.parameters, own, str(path))
    empty = next((key for key, value in vars(parameters).items() if value == ()), None)
    if empty is not None:
        raise SpecError(f"{path}: {empty}: expected at least one, got none")
    return read_spec(path.parent / content["base"]), parameters
