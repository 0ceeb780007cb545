"""S4L as published: beside the answers, the thief learns from images alone which way up they are.

The rotation loss is that of a second, 4-way linear head on the thief's features. It uses the whole pool, not only the
images asked. Each image of a batch is turned once, a quarter of them by each angle, rather than four times: the same
loss in expectation for a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.requirements import require_images
from queen.core.split import find_split, run_model
from queen.errors import ShapeError
from queen.training import ExtraLoss, train
from queen.zoo import seeded

TURNS = 4


class RotationModel(nn.Module):
    """A thief and a second head on its features; calling it gives the thief's logits (n, K)."""

    def __init__(self, thief: nn.Module, sample: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        split = find_split(thief.to(sample.device), sample)
        with torch.no_grad():
            features, _ = split(sample)
        self.thief, self._features = thief, [features]  # of the last batch, put there by the hook
        # Not `Split`: it always puts the network into eval mode.
        self.hook = thief.get_submodule(split.head_name).register_forward_pre_hook(self._note_features)
        with seeded(generator):
            self.turn_head = nn.Linear(features.shape[1], TURNS).to(sample.device)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) -> (n, K)."""
        return run_model(self.thief, x)

    def turns(self, x: Tensor) -> Tensor:
        """Logits (n, 4) of the number of quarter turns of x."""
        run_model(self.thief, x)
        logits: Tensor = self.turn_head(self._features[0])
        return logits

    def _note_features(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features[0] = inputs[0]


def learn_turns(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """Train a thief on the answers and, in the same steps, on the turns of the pool's images; both losses weigh 1."""
    require_images(transcript.x)
    model = RotationModel(knowledge.make_thief(generator), transcript.x[:2], generator)
    unlabelled = batches(knowledge.pool, knowledge.schedule.batch, generator)
    watch = knowledge.on_epoch
    train(
        model,
        transcript.x,
        transcript.answers,
        knowledge.schedule,
        generator,
        on_epoch=None if watch is None else lambda _: watch(model.thief),
        extra_loss=ExtraLoss(lambda: turned(next(unlabelled)), lambda x, turns: turn_loss(model, x, turns)),
    )
    model.hook.remove()
    return model.thief


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    """Images x (n, C, H, W), of which a quarter of the rows is turned by each angle, and their quarter turns (n,)."""
    if x.shape[2] != x.shape[3]:
        raise ShapeError(f"only square images can be turned, got {x.shape[2]} x {x.shape[3]}")
    parts = x.tensor_split(TURNS)
    truth = torch.cat([torch.full((len(part),), turns) for turns, part in enumerate(parts)])
    return torch.cat([part.rot90(turns, (2, 3)) for turns, part in enumerate(parts)]), truth.to(x.device)


def turn_loss(model: RotationModel, x: Tensor, turns: Tensor) -> Tensor:
    """Cross-entropy of the guessed quarter turns of x (n, C, H, W) with the true ones (n,)."""
    return F.cross_entropy(model.turns(x).float(), turns)


def batches(x: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random batches of x without end, all of one size: images left over in an epoch wait for the next one's order."""
    size = min(size, len(x))
    while True:
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for rows in order[: len(x) - len(x) % size].split(size):  # type: ignore[no-untyped-call]
            yield x[rows]
