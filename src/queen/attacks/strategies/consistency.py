"""Few answers and many images without one: consistency training in the manner of FixMatch.

Where the thief is sure of a weakly changed image, it must say the same of a strongly changed copy of it. The images may
be its own pool, or images of the victim's kind without labels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.requirements import require, require_images
from queen.attacks.strategies.rotation import batches
from queen.core.split import run_model
from queen.training import ExtraLoss, augmented, train

RATIO = 3  # images without answer per image with one, in a step; published: 7, which takes twice the time
SURE = 0.95  # probability from which the thief's own label counts, as published
VIEWS, VIEWED = 16, 10_000  # weakly changed copies of every answered image at most, and of all of them together
TURN, ZOOM, SHEAR, SHIFT = math.radians(20), 0.2, 0.2, 0.15  # largest strong changes; shifts as a share of the side
LIGHT = 0.4  # largest change of brightness, of contrast and of each colour
HOLE = 0.5  # side of the square that is painted over, as a share of the image's, at most


def learn_from_pool(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A thief trained on the answers, and by consistency on the pool."""
    return learn_consistently(transcript, knowledge.pool, knowledge, generator)


def learn_from_own_kind(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A thief trained on the answers, and by consistency on images of the victim's kind; it ignores their labels."""
    return learn_consistently(transcript, require(knowledge.benign, "benign")[0], knowledge, generator)


def learn_consistently(
    transcript: Transcript, unlabelled: Tensor, knowledge: Knowledge, generator: torch.Generator
) -> nn.Module:
    """Train a thief on the answers and, in the same steps, to be consistent on unlabelled images; both losses weigh 1.

    Few answered images count in many weakly changed copies, so that a step has a full batch however few there are.
    """
    require_images(transcript.x)
    sizes, schedule = knowledge.sizes, knowledge.schedule
    views = count_views(len(transcript))
    copies = transcript.x.repeat(views, 1, 1, 1)
    images = batches(unlabelled, RATIO * schedule.batch, generator)

    def draw_views() -> tuple[Tensor, Tensor]:
        return weak_and_strong(next(images), generator, mirror=sizes.mirror)

    thief = knowledge.make_thief(generator)
    return train(
        thief,
        augmented(copies, generator, mirror=sizes.mirror),
        transcript.answers.repeat(views, 1),
        schedule,
        generator,
        on_epoch=knowledge.on_epoch,
        extra_loss=ExtraLoss(draw_views, lambda weak, strong: consistency_loss(thief, weak, strong, SURE)),
    )


def count_views(answered: int) -> int:
    """How many weakly changed copies each of so many answered images gets: many where they are few."""
    return max(1, min(VIEWS, VIEWED // max(answered, 1)))


def weak_and_strong(x: Tensor, generator: torch.Generator, *, mirror: bool = True) -> tuple[Tensor, Tensor]:
    """A weakly and a strongly changed copy of images x (n, C, H, W)."""
    return augmented(x, generator, mirror=mirror), strongly_augmented(x, generator, mirror=mirror)


def consistency_loss(model: nn.Module, weak: Tensor, strong: Tensor, sure: float) -> Tensor:
    """Cross-entropy of strongly changed images (n, C, H, W) with the labels of weakly changed ones.

    Only where the label has at least the probability `sure`; the others count as zero. Guesses are first divided by
    their mean over the batch: all classes are as frequent as each other. Otherwise, where the answered images are of
    another kind than these, one class takes all of them, and the thief collapses.
    """
    with torch.no_grad():
        guess = run_model(model, weak).float().softmax(1)
    balanced = guess / guess.mean(0)
    chance, label = (balanced / balanced.sum(1, keepdim=True)).max(1)
    logits = run_model(model, strong).float()
    return (F.cross_entropy(logits, label, reduction="none") * (chance >= sure)).mean()


def strongly_augmented(x: Tensor, generator: torch.Generator, *, mirror: bool = True) -> Tensor:
    """Images (n, C, H, W) in 0..1, each turned, zoomed, sheared, shifted, relit and with a square painted over."""
    weak = augmented(x, generator, mirror=mirror)
    n, channels, height, width = x.shape

    def draw(*shape: int) -> Tensor:
        """Numbers in -1..1."""
        return (2 * torch.rand(*shape, generator=generator) - 1).to(x)

    angle, shear, zoom = TURN * draw(n), SHEAR * draw(n), 1 + ZOOM * draw(n)
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    lines = [torch.stack([cos, shear - sin, 2 * SHIFT * draw(n)], 1), torch.stack([sin, cos, 2 * SHIFT * draw(n)], 1)]
    grid = F.affine_grid(torch.stack(lines, 1), list(x.shape), align_corners=False)
    moved = F.grid_sample(weak, grid, align_corners=False)
    mean = moved.mean((1, 2, 3), keepdim=True)
    lit = (moved - mean) * (1 + LIGHT * draw(n, channels, 1, 1)) + mean * (1 + LIGHT * draw(n, 1, 1, 1))
    reach = HOLE / 2 * draw(n, 1, 1).abs()
    rows, columns = (torch.linspace(0, 1, side, device=x.device) for side in (height, width))
    down, across = (0.5 + 0.5 * draw(n, 1, 1) for _ in range(2))
    hole = ((rows[:, None] - down).abs() < reach) & ((columns[None] - across).abs() < reach)
    return torch.where(hole[:, None], mean, lit).clamp(0, 1)
