"""Attackers who know the defense, but not the defender's networks: they build the same defense themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.labels import train_first_thief
from queen.attacks.strategies.pairs import answers_prior, draw_pairs
from queen.attacks.strategies.pbayes import recover_transcript
from queen.attacks.strategies.requirements import require
from queen.errors import QueenError
from queen.training import probabilities

FEW = 5  # images of each class, at least, to build a defense on


def informed_proxy(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Train a model on the answers, build the same defense around it, and recover by what that defense does.

    Who was refused soon has too few answers for a model that a defense can be built around, and believes those few.
    """
    rebuild = require(knowledge.rebuild, "rebuild")
    model = train_first_thief(transcript, knowledge, generator)
    try:
        endpoint = rebuild(model, transcript.x, label_every_class(model, transcript.x), generator)
    except QueenError:
        return transcript
    prior = answers_prior(transcript, knowledge)
    pairs = draw_pairs(transcript, prior, endpoint.simulate, knowledge.sizes, generator)
    return recover_transcript(transcript, pairs, knowledge)


def label_every_class(model: nn.Module, x: Tensor) -> Tensor:
    """The model's labels (n,) of x (n, ...), except that rare classes get the images that look most like them.

    A defense cannot be built without images of every class, and the attacker's images may leave one out.
    """
    chances = probabilities(model, x)
    classes = chances.shape[1]
    labels = chances.argmax(1)
    taken = torch.zeros_like(labels, dtype=torch.bool)
    for k in labels.bincount(minlength=classes).argsort(descending=True, stable=True).tolist():
        likeness = (chances[:, k] + (labels == k)).masked_fill(taken, -1)  # its own images first
        rows = likeness.topk(min(FEW, len(x) // classes)).indices
        labels[rows], taken[rows] = k, True
    return labels
