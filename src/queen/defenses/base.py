"""What a defense is: a way to put a victim behind an endpoint, which answers its clients in the model's place.

`Defense.start(victim, generator)` sets one up. The result is an `Endpoint`: `client(name)` gives one client's oracle,
`simulate` what attackers who know the method can compute themselves. Most defenses are a `MappedEndpoint`, a fixed map
of the model's probabilities; those with a memory bring an endpoint class of their own.
"""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from queen.cache import Cache
from queen.errors import OptionError
from queen.training import Schedule, probabilities
from queen.types import Oracle

KeepsLabel = Literal["always", "ties", "no"]
"""Whether the class with the highest answer is the model's: always, up to ties (as rounding makes them), or not."""
Need = Literal["x", "second_network", "outliers", "calibration"]
"""What a defense uses beside the model's probabilities: the query itself, a second trained network, outlier images
that the victim was trained with, images held out from training."""

NOISE = 1e-6  # of float32 numbers in 0..1 that were only scaled or summed up


@dataclass(frozen=True)
class Victim:
    """The owner's side: the model, and the images and labels it was trained with. Images are in 0..1.

    `make_network` builds an untrained network of the victim's architecture; `schedule` is how the owner trains one.
    `calibration` are images and labels held out from training. `cache` stores what is slow to make.
    """

    model: nn.Module
    train: tuple[Tensor, Tensor]
    make_network: Callable[[torch.Generator], nn.Module]
    schedule: Schedule = field(default_factory=Schedule)
    calibration: tuple[Tensor, Tensor] | None = None
    outliers: Tensor | None = None
    cache: Cache | None = None

    def clean(self, x: Tensor) -> Tensor:
        """The model's own probabilities (n, K)."""
        return probabilities(self.model, x)


class Endpoint(Protocol):
    """A defended victim, as seen by its clients and by attackers who know the defense."""

    @property
    def verdicts(self) -> Mapping[str, int]:
        """What became of all queries so far: how many got each verdict, by its name.

        Every defense counts the "honest" answers, as it alone knows: where it decides, those that it decided to leave
        alone; a fixed map, those of which it changed no number. Those that refuse also count "refused" ones.
        """
        ...

    def client(self, name: str) -> Oracle:
        """The oracle of one client, whom stateful defenses remember by this name."""
        ...

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The answers (states, n, K) to a new client that sends x (n, ...), if the model's own were `clean` (n, K).

        Most defenses have one state; some have a second one, such as that of accused clients. Defenses with a secret
        draw another from `generator`: an attacker knows the method, not the key. Changes nothing.
        """
        ...


@dataclass(frozen=True)
class MappedEndpoint:
    """An endpoint without memory: for everybody the same map of probabilities y (n, K) and queries x (n, ...)."""

    victim: Victim
    perturb: Callable[[Tensor, Tensor], Tensor]
    counts: Counter[str] = field(default_factory=lambda: Counter(honest=0), compare=False)

    @property
    def verdicts(self) -> Mapping[str, int]:
        """How many answers were the model's own."""
        return dict(self.counts)

    def client(self, name: str) -> Oracle:
        """The map, applied to the model's answers."""

        def answer(x: Tensor) -> Tensor:
            clean = self.victim.clean(x)
            answers = self.perturb(clean, x)
            self.counts["honest"] += count_unchanged(clean, answers)
            return answers

        return answer

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The map itself."""
        return self.perturb(clean, x)[None]


def count_unchanged(clean: Tensor, answers: Tensor) -> int:
    """How many rows of the answers (n, K) are the clean ones they were made of, but for the noise of arithmetic."""
    return int(((answers - clean).abs().amax(1) <= NOISE).sum())


@dataclass(frozen=True)
class Defense:
    """One entry of `DEFENSES`: how to build the endpoint, what that needs, and what it promises.

    `build(victim, generator, **options)` returns the endpoint; all options have defaults. `on_simplex` says whether
    answers sum to 1, `stateful` whether an answer depends on what the client asked before. `added` names options that
    are younger than published results: those depend on them only where they are not at their defaults.
    """

    build: Callable[..., Endpoint]
    keeps_label: KeepsLabel
    needs: frozenset[Need] = frozenset()
    on_simplex: bool = True
    stateful: bool = False
    added: frozenset[str] = frozenset()

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of `build` and their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        return {p.name: p.default for p in parameters}

    def start(self, victim: Victim, generator: torch.Generator, **options: Any) -> Endpoint:
        """The endpoint of the victim behind this defense; refuses unknown options."""
        unknown = next((name for name in options if name not in self.options), None)
        if unknown is not None:
            raise OptionError(f"no option '{unknown}'{nearest(unknown, self.options)}")
        return self.build(victim, generator, **options)


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """The end of an error message about a name: the known ones, and the one that was probably meant."""
    close = difflib.get_close_matches(str(name), known, 1)
    meant = f"; did you mean '{close[0]}'?" if close else ""
    return f"; known: {', '.join(known) or 'none'}{meant}"
