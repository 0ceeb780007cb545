"""Asking for one image several times and believing the mean of the answers; each time costs a query."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from queen.attacks.base import CountedOracle, Knowledge, Sizes, Transcript
from queen.attacks.strategies.requirements import require_images
from queen.training import augmented


def smoothing_cost(sizes: Sizes) -> int:
    """Queries per image: one per view, or 1 if they are to be counted as published code does, once per image."""
    return 1 if sizes.peer_smoothing else sizes.views


def smoothing_overspend(sizes: Sizes) -> int:
    """The number of budgets spent: 1, or one per view if queries are counted as published code does."""
    return sizes.views if sizes.peer_smoothing else 1


def smooth(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for shifted and mirrored views of each image, and believe the mean of their answers of the image itself."""
    require_images(x)
    views = (augmented(x, generator, mirror=knowledge.sizes.mirror) for _ in range(knowledge.sizes.views))
    answers, answered = mean_answers(oracle, views)
    return Transcript(x[answered], answers[answered])


def average_views(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for views, and believe the mean of their answers of each view, so that the thief learns to ignore the view.

    Our reading of the sentence in which the paper describes S4L; what is published under that name is `s4l`.
    """
    require_images(x)
    views = [augmented(x, generator, mirror=knowledge.sizes.mirror) for _ in range(knowledge.sizes.views)]
    answers, answered = mean_answers(oracle, views)
    return Transcript(torch.cat([view[answered] for view in views]), answers[answered].repeat(len(views), 1))


def repeat(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for the same image several times, so that noise in the answers averages out."""
    answers, answered = mean_answers(oracle, (x for _ in range(knowledge.sizes.repeats)))
    return Transcript(x[answered], answers[answered])


def mean_answers(oracle: CountedOracle, views: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean (n, K) of the answers to views, each (n, ...), and which images (n,) were answered at least once."""
    total, times = torch.zeros(()), torch.zeros((), dtype=torch.long)
    for view in views:
        answers, answered = oracle.ask(view)
        total = total.to(answers) + answers.masked_fill(~answered[:, None], 0)
        times = times.to(answers.device) + answered
    return total / times.clamp(min=1)[:, None], times > 0
