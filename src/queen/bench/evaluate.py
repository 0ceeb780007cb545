"""Three lines of Python: how well could an own model be stolen, and what would each defense change?"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from queen.attacks import find_attack, find_queries
from queen.attacks.base import Sizes
from queen.bench.cell import run_trial
from queen.bench.protectee import Labelled, Protectee
from queen.bench.render.table import Table, tables, to_markdown
from queen.bench.spec import Utility
from queen.bench.trial import Trial
from queen.cache import Cache, fingerprint
from queen.core.split import run_model
from queen.defenses import find_defense
from queen.defenses.base import Victim
from queen.errors import OptionError
from queen.progress import Progress
from queen.training import Schedule
from queen.weights import sha256_of
from queen.zoo import seeded


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
    train: Labelled,
    test: Labelled,
    pool: Tensor | Labelled,
    calibration: Labelled | None = None,
    benign: Labelled | None = None,
    defenses: Sequence[str] = ("none", "queen", "queen-sentinel"),
    attacks: Sequence[str] = ("direct", "label_only"),
    queries: Sequence[str] = ("knockoff",),
    budget: int | None = None,
    seeds: Sequence[int] = (0,),
    make_thief: Callable[[torch.Generator], nn.Module] | None = None,
    schedule: Schedule | None = None,
    sizes: Sizes | None = None,
    utility: Utility | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Attack a trained classifier behind every defense.

    `train`, `test`, `calibration` and `benign` are (x, y) tensors, images in 0..1, on the model's device; `pool` are
    the attacker's images (and their own labels, which some attacks use). The budget is the whole pool unless given;
    thieves have the model's architecture, with fresh weights, unless `make_thief` says otherwise.
    """
    for query in queries:
        find_queries(query)
    for name in defenses:
        if "calibration" in find_defense(name).needs and calibration is None:
            raise OptionError(f"defense '{name}' needs held-out images: evaluate(..., calibration=(x, y))")
    model = copy.deepcopy(model).eval()  # the caller's stays in its mode
    for name in attacks:
        if "benign" in find_attack(name).knows and benign is None:
            raise OptionError(f"attack '{name}' owns images of the victim's kind: evaluate(..., benign=(x, y))")
    images, labels = pool if isinstance(pool, tuple) else (pool, None)
    make = make_thief or (lambda generator: fresh_copy(model, generator))
    with torch.inference_mode():
        classes = run_model(model, test[0][:2]).shape[1]
    trials = [
        Trial(
            column=defense,
            defense=defense,
            query=query,
            attack=attack,
            budget=len(images) if budget is None else budget,
            seed=seed,
            sizes=sizes or Sizes(),
            utility=utility or Utility(),
        )
        for defense in defenses
        for query in queries
        for attack in attacks
        if query in find_attack(attack).queries
        for seed in seeds
    ]
    with tempfile.TemporaryDirectory() as folder, Progress(progress) as show:
        cache = Cache(Path(folder))
        protectee = Protectee(
            name="own model",
            key=fingerprint(*model.state_dict().values(), test[0], images),
            weights=sha256_of(model),
            victim=Victim(model, train, make, calibration=calibration, cache=cache),
            test=test,
            pool=images,
            pool_labels=labels,
            make_thief=make,
            thief_schedule=schedule or Schedule(),
            classes=classes,
            benign=benign,
            sources=("own images",),
        )
        return Evaluation([run_trial(trial, protectee, cache) for trial in show.each("attacks", trials, len(trials))])


def fresh_copy(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The same architecture with untrained weights."""
    copied = copy.deepcopy(model).requires_grad_(True)
    with seeded(generator):
        for module in copied.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    same = [torch.equal(a, b) for a, b in zip(copied.parameters(), model.parameters(), strict=True) if a.numel() > 1]
    if any(same):
        raise OptionError("some layers of this model cannot be reset: say make_thief=lambda generator: new_network()")
    return copied
