"""What recovery attacks learn from: pairs of a clean answer and what the defense would make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from queen.attacks.base import Knowledge, Sizes, Transcript
from queen.attacks.strategies.requirements import known, on_simplex

SMALLEST = 1e-3  # of a Dirichlet parameter: zero is none, and this adds about 1e-5 of probability
Simulate = Callable[[Tensor, Tensor, torch.Generator], Tensor]
Prior = Callable[[Transcript, Knowledge], Tensor]
"""Around which answers (n, K) to look for the clean ones."""


@dataclass(frozen=True)
class Pairs:
    """Clean answers (m, K) and the defense's (m, K), row by row."""

    clean: Tensor
    told: Tensor


def clean_prior(found: Transcript, knowledge: Knowledge) -> Tensor:
    """The victim's own answers, as the published attacks have it: no real attacker knows them."""
    return known(knowledge.clean, "clean")(found.x).to(found.answers)


def told_prior(found: Transcript, knowledge: Knowledge) -> Tensor:
    """What was answered, made probabilities: all that a real attacker has."""
    return on_simplex(found.answers)


def simulator(knowledge: Knowledge) -> Simulate:
    """The defense's map."""
    return known(knowledge.simulate, "simulate")


def draw_pairs(found: Transcript, prior: Tensor, simulate: Simulate, sizes: Sizes, generator: torch.Generator) -> Pairs:
    """About `sizes.table` pairs for every state of the defense: clean answers drawn around a prior (n, K).

    Each pass over the stream of queries draws one clean answer a query, so that a defense with a memory is simulated
    for a whole stream. A table smaller than the stream takes a random part of it, in its order.
    """
    x = found.x
    if sizes.table < len(x):
        rows = torch.randperm(len(x), generator=generator)[: sizes.table].sort().values.to(x.device)
        x, prior = x[rows], prior[rows]
    strength = prior.shape[1] * sizes.concentration
    passes = max(1, sizes.table // len(x))
    return simulated((dirichlet(strength * prior, generator) for _ in range(passes)), x, simulate, generator)


def simulated(clean: Iterable[Tensor], x: Tensor, simulate: Simulate, generator: torch.Generator) -> Pairs:
    """Pairs of clean answers, each (n, K) to x (n, ...), in every state of the defense."""
    known_clean, told = [], []
    for answers in clean:
        states = simulate(answers, x, generator).to(answers)
        told.append(states.flatten(0, 1))
        known_clean.append(answers.repeat(len(states), 1))
    return Pairs(torch.cat(known_clean), torch.cat(told))


def dirichlet(parameters: Tensor, generator: torch.Generator) -> Tensor:
    """One draw for every row of parameters (n, K), on their device; `generator` is a CPU one."""
    parameters = parameters.clamp(min=SMALLEST)
    source = generator
    if parameters.device.type != "cpu":  # drawn where they are needed: a large table takes a CPU half a minute
        source = torch.Generator(parameters.device)
        source.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    gammas = torch._standard_gamma(parameters, generator=source)  # the public one draws from the global state
    return on_simplex(gammas)
