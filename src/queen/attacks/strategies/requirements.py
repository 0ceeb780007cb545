"""What several strategies need: knowledge that must be there, probabilities that must be some, a first thief."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from queen.attacks.base import Knowledge, Transcript, train_thief
from queen.errors import OptionError, ShapeError

T = TypeVar("T")


def known(value: T | None, name: str) -> T:
    """A field of Knowledge that this attack cannot do without."""
    if value is None:
        raise OptionError(f"this attack needs Knowledge.{name}, got None; pass Knowledge({name}=...) or leave it out")
    return value


def need_images(x: Tensor) -> None:
    """Refuse to shift, mirror or turn what is no image."""
    if x.ndim != 4:
        raise ShapeError(f"this attack needs images (n, channels, height, width), got {tuple(x.shape)}")


def on_simplex(answers: Tensor) -> Tensor:
    """Numbers (n, K) as probabilities: negative ones cut off, rows scaled to 1; flat where nothing is left."""
    positive = answers.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    return torch.where(total > 0, positive / total.clamp(min=1e-12), 1 / answers.shape[1])


def first_thief(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A thief trained on the way, which nobody watches; on labels, which most defenses leave alone."""
    labels = nn.functional.one_hot(found.answers.argmax(1), found.answers.shape[1]).to(found.answers)
    return train_thief(found.believing(labels), replace(knowledge, on_epoch=None), generator)
