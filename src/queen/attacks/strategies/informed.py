"""Attackers who know the defense and simulate it: with the defender's own networks, or with a copy they built."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.pairs import clean_prior, draw_pairs, told_prior
from queen.attacks.strategies.pbayes import pbayes, recovered
from queen.attacks.strategies.requirements import first_thief, known
from queen.training import probabilities

FEW = 5  # images that a class must have to build a defense on

informed_oracle = pbayes(clean_prior)
"""`Knowledge.simulate` runs the defender's own networks: nobody knows more. The same computation as `pbayes`."""


def informed_proxy(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Train an own model on the answers, build the same defense around it, and learn from that what it does."""
    rebuild = known(knowledge.rebuild, "rebuild")
    model = first_thief(found, knowledge, generator)
    service = rebuild(model, found.x, own_labels(model, found.x), generator)
    pairs = draw_pairs(found, told_prior(found, knowledge), service.simulate, knowledge.sizes, generator)
    return recovered(found, pairs, knowledge)


def own_labels(model: nn.Module, x: Tensor) -> Tensor:
    """The model's labels of x (n, ...); classes with hardly any image get those that look most like them.

    A defense cannot be built without images of every class, and a pool of other things may miss one.
    """
    chances = probabilities(model, x)
    classes = chances.shape[1]
    labels = chances.argmax(1)
    taken = torch.zeros_like(labels, dtype=torch.bool)
    for k in labels.bincount(minlength=classes).argsort(descending=True, stable=True).tolist():
        liking = (chances[:, k] + (labels == k)).masked_fill(taken, -1)  # its own images first
        rows = liking.topk(min(FEW, len(x) // classes)).indices
        labels[rows], taken[rows] = k, True
    return labels
