"""Pairs of a clean answer and what the defense would make of it, from which recovery attacks learn to undo it.

The pairs also tell the attacker whether the label of an answer is to be believed: where nearly all of them keep it, a
recovery must not change it. Whoever forgets that throws away the best part of what such a defense gives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from queen.attacks.base import Knowledge, Sizes, Transcript
from queen.attacks.strategies.cleaning import to_simplex
from queen.attacks.strategies.requirements import require
from queen.cache import fingerprint

NEARLY_ALL = 0.95  # share of pairs that keep the label from which the labels of answers are believed
MOST_PASSES = 500  # over the stream of queries
SMALLEST = 1e-3  # Dirichlet parameter: 0 is not allowed, and this adds about 1e-5 of probability
SHARED_TABLES, SHARED_NUMBERS = 2, 2**29  # how many tables wait for another attack, and how many numbers together
Simulate = Callable[[Tensor, Tensor, torch.Generator], Tensor]
Prior = Callable[[Transcript, Knowledge], Tensor]
"""(transcript, knowledge) -> answers (n, K) around which clean ones are drawn."""


@dataclass(frozen=True)
class Pairs:
    """Clean answers (m, K) and, row by row, what the defense makes of them (m, K)."""

    clean: Tensor
    defended: Tensor


def clean_prior(transcript: Transcript, knowledge: Knowledge) -> Tensor:
    """The victim's own answers, as in the published attacks: no real attacker knows them."""
    return require(knowledge.clean, "clean")(transcript.x).to(transcript.answers)


def answers_prior(transcript: Transcript, knowledge: Knowledge) -> Tensor:
    """The answers of the transcript, made probabilities: all that a real attacker has."""
    return to_simplex(transcript.answers)


_tables: OrderedDict[str, tuple[Pairs, Tensor]] = OrderedDict()  # with the generator's state after drawing, by name


def pairs_around(prior: Prior, transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Pairs:
    """Pairs drawn around a prior; attacks in one process that draw the same, as D-DAE+ and pBayes do, share them.

    `generator` ends in the same state whether the pairs are drawn or shared.
    """
    simulate, around = require(knowledge.simulate, "simulate"), prior(transcript, knowledge)
    if not knowledge.defense_key:
        return draw_pairs(transcript, around, simulate, knowledge.sizes, generator)
    name = _name_of_table(transcript, around, knowledge, generator)
    if name not in _tables:
        _tables[name] = draw_pairs(transcript, around, simulate, knowledge.sizes, generator), generator.get_state()
    pairs, state = _tables[name]
    _tables.move_to_end(name)
    while (
        len(_tables) > SHARED_TABLES or sum(2 * table.clean.numel() for table, _ in _tables.values()) > SHARED_NUMBERS
    ):
        _tables.popitem(last=False)
    generator.set_state(state)
    return pairs


def _name_of_table(transcript: Transcript, around: Tensor, knowledge: Knowledge, generator: torch.Generator) -> str:
    """A hash of all that a table is made of; of the images their sums, which is quicker and tells them apart."""
    sizes = knowledge.sizes
    plain = repr((knowledge.key, knowledge.defense_key, sizes.table, sizes.concentration)).encode()
    return fingerprint(plain, generator.get_state(), transcript.x.flatten(1).sum(1), around)


def draw_pairs(
    transcript: Transcript, prior: Tensor, simulate: Simulate, sizes: Sizes, generator: torch.Generator
) -> Pairs:
    """About `sizes.table` pairs per state of the defense: clean answers drawn around a prior (n, K), then defended.

    Each pass over the stream of queries draws one clean answer per query, so that a defense with a memory is simulated
    on whole streams. A table smaller than the stream takes a random part of it, in order; where few queries were
    answered, `MOST_PASSES` passes have to do.
    """
    x = transcript.x
    if sizes.table < len(x):
        rows = draw_part(x, sizes.table, generator)
        x, prior = x[rows], prior[rows]
    strength = prior.shape[1] * sizes.concentration
    passes = min(max(1, sizes.table // len(x)), MOST_PASSES)
    return simulate_pairs((dirichlet(strength * prior, generator) for _ in range(passes)), x, simulate, generator)


def draw_part(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The rows (count,) of a random part of a stream of queries x (n, ...), in their order."""
    return torch.randperm(len(x), generator=generator)[:count].sort().values.to(x.device)


def simulate_pairs(passes: Iterable[Tensor], x: Tensor, simulate: Simulate, generator: torch.Generator) -> Pairs:
    """Pairs of clean answers to x (n, ...), one (n, K) per pass, with what each state of the defense makes of them."""
    clean, defended = [], []
    for answers in passes:
        states = simulate(answers, x, generator).to(answers)
        defended.append(states.flatten(0, 1))
        clean.append(answers.repeat(len(states), 1))
    return Pairs(torch.cat(clean), torch.cat(defended))


def believes_labels(pairs: Pairs, knowledge: Knowledge) -> bool:
    """Whether nearly all pairs keep the label, by the attacker's own count, which goes into its findings."""
    share = (pairs.clean.argmax(1) == pairs.defended.argmax(1)).double().mean().item()
    knowledge.findings.update(label_kept=share, labels_believed=share >= NEARLY_ALL)
    return share >= NEARLY_ALL


def dirichlet(parameters: Tensor, generator: torch.Generator) -> Tensor:
    """One draw per row of parameters (n, K), on their device; `generator` is on the CPU."""
    parameters = parameters.clamp(min=SMALLEST)
    source = generator
    if parameters.device.type != "cpu":  # draw there: a large table would take the CPU half a minute
        source = torch.Generator(parameters.device)
        source.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    gammas = torch._standard_gamma(parameters, generator=source)  # the public one draws from the global state
    return to_simplex(gammas)
