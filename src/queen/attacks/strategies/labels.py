"""Believing labels alone: the floor under every evaluation, since no defense that keeps the label prevents this."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from queen.attacks.base import Knowledge, Transcript, train_thief
from queen.defenses import label_only


def top_label(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Believe one-hot vectors of the highest answers."""
    return transcript.with_answers(label_only.perturb(transcript.answers))


def train_first_thief(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A thief that helps to judge the answers: trained on labels, which most defenses leave alone, and not watched."""
    return train_thief(top_label(transcript, knowledge, generator), replace(knowledge, on_epoch=None), generator)
