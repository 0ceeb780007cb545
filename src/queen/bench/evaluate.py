"""Three lines of Python: how well could an own model be stolen, and what would each defense change?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from queen.attacks import find_attack, find_queries
from queen.attacks.base import Sizes
from queen.bench.datasets.own import Owned, as_tensors
from queen.bench.naming import as_json, digest
from queen.bench.protectee import Labelled, Protectee
from queen.bench.render.table import Table, tables, to_markdown
from queen.bench.spec import Utility
from queen.bench.trials.cell import run_trial
from queen.bench.trials.trial import Trial
from queen.bench.weights import sha256_of
from queen.cache import Cache, code_version, fingerprint
from queen.core.split import run_model
from queen.defenses import find_defense
from queen.defenses.base import Victim
from queen.errors import OptionError
from queen.progress import Progress
from queen.training import Schedule, one_thread
from queen.zoo import seeded

MOST_NUMBERS = 10**8  # of a table of pairs, so that pairs of 1,000 classes fit into memory
PROBES = 32  # test images whose logits tell models apart that have the same weights
Columns = Sequence[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """What was measured, one result per trial; prints as a table."""

    results: list[dict[str, Any]]

    @property
    def table(self) -> Table:
        """The results in the paper's layout."""
        return tables(self.results)[0]

    def best_thief(self, defense: str) -> float:
        """The accuracy of the best stolen copy against a defense."""
        accuracies = [r["thief"]["accuracy"] for r in self.results if r["column"] == defense]
        if not accuracies:
            raise OptionError(f"no run against '{defense}'")
        return max((accuracy for accuracy in accuracies if accuracy is not None), default=0.0)

    def __str__(self) -> str:
        return to_markdown(self.table)


def evaluate(
    model: nn.Module,
    *,
    train: Owned,
    test: Owned,
    pool: Owned,
    calibration: Owned | None = None,
    benign: Owned | None = None,
    defenses: Columns = ("none", "queen", "queen-sentinel"),
    attacks: Sequence[str] = ("direct", "label_only"),
    queries: Sequence[str] = ("knockoff",),
    budget: int | None = None,
    seeds: Sequence[int] = (0,),
    make_thief: Callable[[torch.Generator], nn.Module] | None = None,
    schedule: Schedule | None = None,
    sizes: Sizes | None = None,
    utility: Utility | None = None,
    cache: Path | str | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Attack a trained classifier behind every defense.

    `train`, `test`, `calibration` and `benign` are (x, y), images in 0..1 and labels, as tensors or arrays, which may
    be memory-mapped, or Datasets of such pairs, which are written to disk; `pool` are the attacker's images (and their
    own labels, which some attacks use). On a GPU all of them go there. `defenses` are names, or columns and their
    options as in a spec. The budget is the whole pool unless given; thieves have the model's architecture, with fresh
    weights, unless `make_thief` builds another from a generator, with which torch's own random state is seeded as well.
    `sizes` are the published ones, but tables of pairs that fit into
    memory. A `cache` folder stores what is finished: the same call goes on where it was stopped.
    """
    columns = defenses if isinstance(defenses, Mapping) else {name: {} for name in defenses}
    _check(columns, attacks, queries, has_calibration=calibration is not None, has_benign=benign is not None)
    model = copy.deepcopy(model).eval()  # the caller's stays in its mode
    with _work_folder(cache) as (store, scratch), Progress(progress) as show:
        given = {"train": train, "test": test, "pool": pool, "calibration": calibration, "benign": benign}
        protectee = _make_protectee(model, given, make_thief, schedule or Schedule(), store, scratch)
        common: dict[str, Any] = {
            "budget": len(protectee.pool) if budget is None else budget,
            "sizes": sizes or _fitting_sizes(protectee.classes),
            "utility": utility or Utility(),
        }
        trials = [
            Trial(column=column, query=query, attack=attack, seed=seed, **_method(column, options), **common)
            for column, options in columns.items()
            for query in queries
            for attack in attacks
            if query in find_attack(attack).queries
            for seed in seeds
        ]

        def run(trial: Trial) -> dict[str, Any]:
            recipe = [as_json(trial), protectee.key, code_version("queen")]
            result: dict[str, Any] = store.facts(f"trial-{digest(recipe)}", lambda: run_trial(trial, protectee, store))
            return result

        return Evaluation([run(trial) for trial in show.each("attacks", trials, len(trials))])


def _check(
    columns: Mapping[str, Mapping[str, Any]],
    attacks: Sequence[str],
    queries: Sequence[str],
    *,
    has_calibration: bool,
    has_benign: bool,
) -> None:
    """Refuse names that nobody knows, and defenses and attacks that lack images."""
    for query in queries:
        find_queries(query)
    for column, options in columns.items():
        needs = find_defense(_method(column, options)["defense"]).needs
        if "calibration" in needs and not has_calibration:
            raise OptionError(f"defense '{column}' needs held-out images: evaluate(..., calibration=(x, y))")
    for name in attacks:
        if "benign" in find_attack(name).knows and not has_benign:
            raise OptionError(f"attack '{name}' owns images of the victim's kind: evaluate(..., benign=(x, y))")


def _method(column: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The method behind a column, which "defense" names where it is not the column's name, and its options."""
    given = {name: value for name, value in options.items() if name != "defense"}
    return {"defense": str(options.get("defense", column)), "options": given}


def _fitting_sizes(classes: int) -> Sizes:
    """The published sizes, with a smaller table where that many pairs of so many classes would not fit into memory."""
    return replace(Sizes(), table=min(Sizes().table, MOST_NUMBERS // classes))


@contextmanager
def _work_folder(cache: Path | str | None) -> Iterator[tuple[Cache, Path]]:
    """The cache, and beside it on the same disk a folder for images, which goes in the end; so do both without one."""
    folder = None if cache is None else Cache(Path(cache)).folder
    with TemporaryDirectory(prefix=".own-", dir=folder) as scratch:
        yield Cache(folder or Path(scratch)), Path(scratch)


def _make_protectee(
    model: nn.Module,
    given: Mapping[str, Owned | None],
    make_thief: Callable[[torch.Generator], nn.Module] | None,
    schedule: Schedule,
    cache: Cache,
    scratch: Path,
) -> Protectee:
    """The model and everybody's images; `key` names all of them, and the thief."""
    like = next(model.parameters(), torch.empty(0))
    owned = {name: as_tensors(data, name, like, scratch) for name, data in given.items() if data is not None}
    for name in owned:
        if name != "pool" and owned[name][1] is None:
            raise OptionError(f"{name}: expected images and labels, (x, y) or a Dataset of pairs, got images alone")
    labelled: dict[str, Labelled] = {name: (x, y) for name, (x, y) in owned.items() if y is not None}
    pool, pool_labels = owned["pool"]
    make = _seeded_maker(make_thief) if make_thief else lambda generator: fresh_copy(model, generator)
    logits = _probe(model, labelled["test"][0][:PROBES])
    weights, blank = sha256_of(model), make(torch.Generator().manual_seed(0))
    facts = repr((weights, model, sorted(owned), schedule, blank, str(like.device.type))).encode()
    tensors = [part for pair in owned.values() for part in pair if part is not None]
    calibration, owners = labelled.get("calibration"), Schedule(record=schedule.record)
    return Protectee(
        name="own model",
        key=fingerprint(facts, logits, *blank.state_dict().values(), *tensors),
        weights=weights,
        victim=Victim(model, labelled["train"], make, schedule=owners, calibration=calibration, cache=cache),
        test=labelled["test"],
        pool=pool,
        pool_labels=pool_labels,
        make_thief=make,
        thief_schedule=schedule,
        classes=logits.shape[1],
        benign=labelled.get("benign"),
        sources=("own images",),
    )


def _seeded_maker(make: Callable[[torch.Generator], nn.Module]) -> Callable[[torch.Generator], nn.Module]:
    """The same maker with torch's own random state seeded: networks take their first weights from it."""

    def make_seeded(generator: torch.Generator) -> nn.Module:
        with seeded(generator):
            return make(generator)

    return make_seeded


def _probe(model: nn.Module, x: Tensor) -> Tensor:
    """The logits (n, K) of a model, the same in every call: what it computes is more than its weights."""
    with torch.inference_mode(), one_thread(), seeded(torch.Generator().manual_seed(0)):
        return run_model(model, x)


def fresh_copy(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The same architecture with untrained weights."""
    copied = copy.deepcopy(model).requires_grad_(True)
    resets = {name: getattr(module, "reset_parameters", None) for name, module in copied.named_modules()}
    with seeded(generator):
        for reset in resets.values():
            if callable(reset):
                reset()
    before = dict(model.named_parameters())
    for name, own in copied.named_parameters():
        # A layer that resets itself may have had its first weights all along, as batch norm often has.
        if own.numel() > 1 and not callable(resets[name.rpartition(".")[0]]) and torch.equal(own, before[name]):
            raise OptionError(
                f"the parameter '{name}' of this model cannot be reset: say make_thief=lambda generator: new_network()"
            )
    return copied
