"""Sorting and undoing answers: what is no probability, what a known formula bends, what looks wrong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.requirements import first_thief, known, on_simplex
from queen.defenses import emdp
from queen.training import predict

LOGITS_BELOW, LOGITS_ABOVE = -0.5, 1.5  # no probability is ever as far off as that
EXPLAINED = 1e-5  # largest difference of an entry
TIED = 0.05  # difference of the two largest entries
# On a GPU an answer changes a little with the batch it is computed in.
EQUAL: Mapping[str, float] = {"cpu": 1e-6, "cuda": 1e-4}


def sanitised(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Probabilities whatever was answered: softmax of rows that look like logits, clipped and scaled ones else."""
    answers = found.answers
    logits = (answers.amin(1) < LOGITS_BELOW) | (answers.amax(1) > LOGITS_ABOVE)
    return found.believing(torch.where(logits[:, None], answers.softmax(1), on_simplex(answers)))


def emdp_undone(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """EMDP undone by its closed form where that explains the answer; elsewhere EMDP was not at work."""
    clean = emdp.invert(found.answers)
    explained = (emdp.perturb(clean) - found.answers).abs().amax(1) <= EXPLAINED
    return found.believing(torch.where(explained[:, None], clean, found.answers))


def agreed(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Only answers that a first thief, trained on all of them, agrees with, and that are not nearly tied.

    A few wrong answers do not fit the rest; answers pushed over a class border end close to it.
    """
    guesses = predict(first_thief(found, knowledge, generator), found.x)
    largest = found.answers.topk(2, 1).values
    keep = (guesses == found.answers.argmax(1)) & (largest[:, 0] - largest[:, 1] >= TIED)
    return _kept(found, keep)


def honest_only(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Only answers that equal the model's own: an attacker who knew at once when it was accused."""
    clean = known(knowledge.clean, "clean")(found.x)
    keep = (found.answers - clean).abs().amax(1) <= EQUAL[clean.device.type]
    return _kept(found, keep)


def _kept(found: Transcript, keep: Tensor) -> Transcript:
    """The rows to keep; all of them where that leaves nothing to learn from."""
    return found.take(keep.nonzero().flatten()) if keep.sum() > 1 else found
