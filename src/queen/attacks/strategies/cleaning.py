"""Repairing and filtering answers: those off the simplex, those bent by a known formula, those that look wrong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.labels import train_first_thief
from queen.attacks.strategies.requirements import require
from queen.defenses import emdp
from queen.options import MAX_DIGITS
from queen.training import predict

LOGITS_BELOW, LOGITS_ABOVE = -0.5, 1.5  # no rounded or perturbed probability is this far off
EXPLAINED = 1e-5  # largest difference of an entry
TIED = 0.05  # difference of the two largest entries
# On a GPU an answer changes with the batch it is computed in: with reduced precision, by more than 1e-4 now and then.
# An answer that is changed by less than a hundredth teaches as much as the honest one.
EQUAL: Mapping[str, float] = {"cpu": 1e-6, "cuda": 1e-2}
ROUNDED = 2  # units: rounding that keeps the sum and the label moves a number by less


def to_simplex(answers: Tensor) -> Tensor:
    """Make rows (n, K) probabilities: cut off negative numbers, scale to sum 1; where nothing is left, flat."""
    positive = answers.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    return torch.where(total > 0, positive / total.clamp(min=1e-12), 1 / answers.shape[1])


def sanitise(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Make every answer a probability vector: the softmax of rows that look like logits, `to_simplex` of the others."""
    answers = transcript.answers
    logits = (answers.amin(1) < LOGITS_BELOW) | (answers.amax(1) > LOGITS_ABOVE)
    return transcript.with_answers(torch.where(logits[:, None], answers.softmax(1), to_simplex(answers)))


def undo_emdp(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Invert EMDP by its closed form where that reproduces the answer; elsewhere EMDP was not at work."""
    clean = emdp.invert(transcript.answers)
    explained = (emdp.perturb(clean) - transcript.answers).abs().amax(1) <= EXPLAINED
    return transcript.with_answers(torch.where(explained[:, None], clean, transcript.answers))


def keep_agreed(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Keep only answers that a first thief, trained on all of them, agrees with, and that are not nearly tied.

    A few wrong answers do not fit the rest; answers pushed over a class border end close to it.
    """
    guesses = predict(train_first_thief(transcript, knowledge, generator), transcript.x)
    largest = transcript.answers.topk(2, 1).values
    keep = (guesses == transcript.answers.argmax(1)) & (largest[:, 0] - largest[:, 1] >= TIED)
    return _keep_rows(transcript, keep)


def keep_honest(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Keep only answers that equal the model's own, up to rounding: an attacker who knows at once that it was accused.

    Of bare labels the right ones are kept. Where the accused are refused, all answers are honest, and everybody knows
    as much.
    """
    clean = require(knowledge.clean, "clean")(transcript.x)
    if rounding_unit(transcript.answers) == 1:
        return _keep_rows(transcript, transcript.answers.argmax(1) == clean.argmax(1))
    allowed = EQUAL[clean.device.type] + rounding_error(transcript.answers)
    return _keep_rows(transcript, (transcript.answers - clean).abs().amax(1) <= allowed)


def rounding_error(answers: Tensor) -> float:
    """How far rounding may have moved a number of the answers (n, K); 0 where they are not rounded, or labels."""
    unit = rounding_unit(answers)
    return ROUNDED * unit if unit < 1 else 0.0


def rounding_unit(answers: Tensor) -> float:
    """The unit that answers (n, K) in 0..1 are rounded to: .001 if three decimals are enough to write all of them down.

    1 where answers are labels; 0 where they are not rounded, to `MAX_DIGITS` decimals or fewer.
    """
    if len(answers) == 0:
        return 0.0
    exact = answers.double()
    for digits in range(MAX_DIGITS + 1):
        if (exact - exact.round(decimals=digits)).abs().max() <= 1e-7:
            return float(10.0**-digits)
    return 0.0


def _keep_rows(transcript: Transcript, keep: Tensor) -> Transcript:
    """The rows to keep; all of them where fewer than two would be left to learn from."""
    return transcript.take(keep.nonzero().flatten()) if keep.sum() > 1 else transcript
