"""S4L as it is published: beside the answers, the thief learns from images alone which way up they are.

The rotation loss is that of a second, 4-way linear head on the thief's features. It sees the whole pool, not only what
was asked. Every image of a batch is turned once, a quarter of them by each angle, rather than four times: the same
loss in expectation for a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.requirements import need_images
from queen.core.split import find_split, run_model
from queen.errors import ShapeError
from queen.training import train
from queen.zoo import seeded

TURNS = 4


class TurnTeller(nn.Module):
    """A thief and a second head on its features; calling it gives the thief's logits (n, K)."""

    def __init__(self, thief: nn.Module, sample: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        split = find_split(thief.to(sample.device), sample)
        with torch.no_grad():
            features, _ = split(sample)
        self.thief, self._head_name = thief, split.head_name
        with seeded(generator):
            self.turn_head = nn.Linear(features.shape[1], TURNS).to(sample.device)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) -> (n, K)."""
        return run_model(self.thief, x)

    def turns(self, x: Tensor) -> Tensor:
        """Logits (n, 4) of the number of quarter turns of x."""
        seen: list[Tensor] = []
        # Not `Split`: it always puts the network into eval mode.
        head = self.thief.get_submodule(self._head_name)
        handle = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            run_model(self.thief, x)
        finally:
            handle.remove()
        logits: Tensor = self.turn_head(seen[0])
        return logits


def learn_turns(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A thief of the answers and, in step, of the turns of the pool's images; both losses weigh the same."""
    need_images(found.x)
    both = TurnTeller(knowledge.make_thief(generator), found.x[:2], generator)
    unlabelled = batches(knowledge.pool, knowledge.schedule.batch, generator)
    watch = knowledge.on_epoch
    train(
        both,
        found.x,
        found.answers,
        knowledge.schedule,
        generator,
        on_epoch=None if watch is None else lambda _: watch(both.thief),
        extra_loss=lambda _: turn_loss(both, next(unlabelled)),
    )
    return both.thief


def turn_loss(model: TurnTeller, x: Tensor) -> Tensor:
    """Cross-entropy of the turns of x (n, C, H, W), a quarter of the rows turned by each angle."""
    if x.shape[2] != x.shape[3]:
        raise ShapeError(f"only square images can be turned, got {x.shape[2]} x {x.shape[3]}")
    parts = x.tensor_split(TURNS)
    turned = torch.cat([part.rot90(turns, (2, 3)) for turns, part in enumerate(parts)])
    truth = torch.cat([torch.full((len(part),), turns) for turns, part in enumerate(parts)])
    return F.cross_entropy(model.turns(turned).float(), truth.to(x.device))


def batches(x: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random batches of x, over and over, never one of a few left-over images."""
    while True:
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for rows in order.tensor_split(max(1, len(x) // size)):
            yield x[rows]
