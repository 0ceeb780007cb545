"""What a defense is: something between a victim and its clients, that answers every client by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from queen.cache import Cache
from queen.errors import OptionError
from queen.training import Schedule, probabilities
from queen.types import Oracle

Keeps = Literal["always", "ties", "no"]
"""Whether the label with the highest answer is the model's: always, up to ties (or rounding), or not."""
Need = Literal["x", "second_network", "outliers", "calibration"]
"""What a defense uses beside the model's probabilities: the query itself, a second trained network, outlier images
that the victim was trained with, held-out images."""


@dataclass(frozen=True)
class Victim:
    """The owner's side: the model and what it was trained with. Images are in 0..1.

    `make_network` builds an untrained network of the victim's architecture; `schedule` is how the owner trains one.
    `cache` keeps what is slow to make.
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
    """A defended victim, as its clients and those who know the defense see it."""

    def client(self, name: str) -> Oracle:
        """How one client is answered; stateful defenses remember it under this name."""
        ...

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """(states, n, K): what a new client would be told if the model had said `clean` (n, K) to x (n, ...).

        One state for most defenses; one more where a client may be in another, such as accused. Defenses with a secret
        draw one of their own from `generator`: an attacker knows the method, not the key. Changes nothing.
        """
        ...


@dataclass(frozen=True)
class Mapped:
    """A service without memory: the same map of probabilities y (n, K), maybe with x, for everybody."""

    victim: Victim
    perturb: Callable[[Tensor, Tensor], Tensor]

    def client(self, name: str) -> Oracle:
        """The map after the model."""
        return lambda x: self.perturb(self.victim.clean(x), x)

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The map itself."""
        return self.perturb(clean, x)[None]


@dataclass(frozen=True)
class Defense:
    """One row of a table: how to build it, what it needs, and what it promises.

    `build(victim, generator, **options)`; options have defaults. `on_simplex` False: answers need not sum to 1.
    """

    build: Callable[..., Endpoint]
    keeps_label: Keeps
    needs: frozenset[Need] = frozenset()
    on_simplex: bool = True
    stateful: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """The options and their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        return {p.name: p.default for p in parameters}

    def start(self, victim: Victim, generator: torch.Generator, **options: Any) -> Endpoint:
        """The victim behind this defense."""
        unknown = next((name for name in options if name not in self.options), None)
        if unknown is not None:
            raise OptionError(f"no option '{unknown}'{nearest(unknown, self.options)}")
        return self.build(victim, generator, **options)


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """The end of an error message: the known names, and the one that was probably meant."""
    close = difflib.get_close_matches(str(name), known, 1)
    meant = f"; did you mean '{close[0]}'?" if close else ""
    return f"; known: {', '.join(known) or 'none'}{meant}"
