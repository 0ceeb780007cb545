"""Asking for one image several times and believing the mean; every time costs a query."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from queen.attacks.base import CountedOracle, Knowledge, Sizes, Transcript
from queen.attacks.strategies.requirements import need_images
from queen.training import augmented


def smoothing_cost(sizes: Sizes) -> int:
    """Queries an image: one a view, unless the published count is wanted, which ignores that."""
    return 1 if sizes.peer_smoothing else sizes.views


def smoothing_overspend(sizes: Sizes) -> int:
    """How many budgets are spent: as published, one for every view."""
    return sizes.views if sizes.peer_smoothing else 1


def smoothing(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Shifted and mirrored views are asked, their mean is believed of the image as it is."""
    need_images(x)
    views = (augmented(x, generator, mirror=knowledge.sizes.mirror) for _ in range(knowledge.sizes.views))
    answers, some = mean_answers(desk, views)
    return Transcript(x[some], answers[some])


def averaged_views(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Views are asked, and their mean is believed of every one of them: a thief that must not care about the view.

    Our reading of the sentence in which the paper describes S4L; what is published under that name is `s4l`.
    """
    need_images(x)
    views = [augmented(x, generator, mirror=knowledge.sizes.mirror) for _ in range(knowledge.sizes.views)]
    answers, some = mean_answers(desk, views)
    return Transcript(torch.cat([view[some] for view in views]), answers[some].repeat(len(views), 1))


def repeated(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """The same image again and again: what is random or changes in the answers averages out."""
    answers, some = mean_answers(desk, (x for _ in range(knowledge.sizes.repeats)))
    return Transcript(x[some], answers[some])


def mean_answers(desk: CountedOracle, views: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean (n, K) of the answers that came to views, each (n, ...), and of which images (n,) one came at all."""
    total, times = torch.zeros(()), torch.zeros((), dtype=torch.long)
    for view in views:
        answers, answered = desk.ask(view)
        total = total.to(answers) + answers.masked_fill(~answered[:, None], 0)
        times = times.to(answers.device) + answered
    return total / times.clamp(min=1)[:, None], times > 0
