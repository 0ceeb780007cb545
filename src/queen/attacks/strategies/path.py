"""Attackers who read a class from answers that hide it: they walk from an image to anchors whose class they know.

An answer may have its classes shuffled and still show where a class ends: there its two largest numbers meet, or the
answer becomes another. An image belongs to the class of the anchors that are reached without crossing such a border.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.attacks.base import Ask, CountedOracle, Knowledge, Sizes, Transcript
from queen.attacks.strategies.requirements import require

SMALLEST = 1e-6  # probability: smaller ones are rounded away
AT_A_TIME = 16  # images whose paths are in memory together

Read = Callable[[Tensor], Tensor]
"""Answers (n, anchors, points, K) along paths -> (n, anchors): the higher, the more likely of one class."""


def path_cost(anchors: Callable[[Sizes], int]) -> Callable[[Sizes], int]:
    """Queries per image: the image itself, and every step to every anchor."""
    return lambda sizes: 1 + anchors(sizes) * sizes.path_steps


def read_gaps(answers: Tensor) -> Tensor:
    """How far apart the two largest numbers stay along a path: the smallest log of their ratio.

    They may meet between two points, so each inner point counts with half a step more of the fall towards it.
    """
    largest = answers.topk(2, -1).values.clamp(min=SMALLEST)
    gaps = (largest[..., 0] / largest[..., 1]).log()
    before, here, after = gaps[..., :-2], gaps[..., 1:-1], gaps[..., 2:]
    fall = torch.maximum(before, after) - here
    return (here - fall.clamp(min=0) / 2).amin(-1)


def read_changes(answers: Tensor) -> Tensor:
    """How little the answers change along a path: minus the sum of the l1 distances from point to point."""
    return -answers.diff(dim=-2).abs().sum((-1, -2))


def ask_along_paths(read: Read, *, labelled: bool = False) -> Ask:
    """Ask for every image, then for points on the way from each to all anchors, and believe the class that is read.

    Anchors are the first images asked, with the classes of their answers: they come before any alarm. With `labelled`,
    they are benign images whose labels the attacker knows. An image with a refused point on its way is believed to be
    what its own answer says.
    """

    def ask(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        sizes = knowledge.sizes
        own, answered = oracle.ask(x)
        labels = own.argmax(1)
        if labelled:
            anchors, classes = spread_over_classes(*require(knowledge.benign, "benign"), sizes.labelled_anchors)
        else:
            rows = answered.nonzero().flatten()[: sizes.honest_anchors]
            anchors, classes = repeat_to(sizes.honest_anchors, x[rows], labels[rows])
        for start in range(0, len(x) if len(anchors) else 0, AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            points = walk(x[part], anchors.to(x), sizes.path_steps)
            replies, replied = oracle.ask(points.flatten(0, 2))
            start_points = own[part, None, None].expand(-1, len(anchors), -1, -1)
            along = torch.cat([start_points, replies.view(*points.shape[:3], -1)], 2)
            classes_read = likeliest_class(read(along), classes.to(x.device), knowledge.classes)
            labels[part] = torch.where(replied.view(len(points), -1).all(1), classes_read, labels[part])
        if not labelled:
            labels[rows] = own[rows].argmax(1)
        beliefs = F.one_hot(labels, knowledge.classes).to(own)
        return Transcript(x[answered], beliefs[answered])

    return ask


def spread_over_classes(x: Tensor, labels: Tensor, count: int) -> tuple[Tensor, ...]:
    """`count` images and their labels, of all classes equally many if it can be: the first of each class, and so on."""
    rank = F.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0]  # within its class
    order = rank.argsort(stable=True)[:count]
    return repeat_to(count, x[order], labels[order])


def repeat_to(count: int, *parts: Tensor) -> tuple[Tensor, ...]:
    """Exactly `count` rows of each tensor, from the first on and again from the first; none where there are none."""
    rows = torch.arange(count if len(parts[0]) else 0, device=parts[0].device) % max(1, len(parts[0]))
    return tuple(part[rows.to(part.device)] for part in parts)


def walk(images: Tensor, anchors: Tensor, steps: int) -> Tensor:
    """(n, anchors, steps, ...) points between images (n, ...) and anchors, evenly apart, both ends left out."""
    shares = torch.linspace(0, 1, steps + 2, device=images.device)[1:-1].view(-1, *[1] * (images.ndim - 1))
    return images[:, None, None] * (1 - shares) + anchors[None, :, None] * shares


def likeliest_class(likeness: Tensor, classes: Tensor, count: int) -> Tensor:
    """The class (n,) whose anchors are most alike on average, of likeness (n, anchors) and the anchors' classes."""
    of_class = F.one_hot(classes, count).to(likeness)
    mean = likeness @ of_class / of_class.sum(0).clamp(min=1)
    return mean.masked_fill(of_class.sum(0) == 0, -torch.inf).argmax(1)
