"""Believing labels alone: the floor under every evaluation, since whatever keeps the label leaves this."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from queen.attacks.base import Knowledge, Transcript


def top_label(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """One-hot vectors of the highest answers."""
    answers = found.answers
    return found.believing(F.one_hot(answers.argmax(1), answers.shape[1]).to(answers.dtype))
