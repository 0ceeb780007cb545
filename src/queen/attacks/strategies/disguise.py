"""Attackers who hide: behind usual images, good will, cover traffic, many accounts, or one true label in a hundred.

All they get is kept, answers to cover images too: these are the most useful images one can ask for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Ask, CountedOracle, Knowledge, Transcript
from queen.attacks.strategies.needs import known
from queen.core.split import run_model
from queen.training import train

JITTER = 0.02  # of a pixel: still the same thing, and near it on the map


def most_usual(knowledge: Knowledge, count: int, generator: torch.Generator) -> Tensor:
    """Rows (count,) of the pool that look most usual to an own network trained on benign images, by its energy."""
    x, labels = known(knowledge.benign, "benign")
    own = train(knowledge.make_thief(generator), x, labels, knowledge.schedule, generator)
    return energy(own, knowledge.pool).argsort(stable=True)[:count]


@torch.inference_mode()
def energy(model: nn.Module, x: Tensor, batch: int = 512) -> Tensor:
    """-logsumexp of the logits (n,): low for what the model knows well."""
    return torch.cat([-run_model(model, part).float().logsumexp(1) for part in x.split(batch)])  # type: ignore[no-untyped-call]


def after_warm_up(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Benign images first, for at most half of what may be asked; they take the place of as many others."""
    benign = known(knowledge.benign, "benign")[0][: min(knowledge.sizes.warm_up, len(x) // 2)]
    return desk.transcript(torch.cat([benign, x[: len(x) - len(benign)]]))


def behind_cover(ratio: int) -> Ask:
    """`ratio` benign images before every other one."""

    def ask(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        benign = enough(known(knowledge.benign, "benign")[0], ratio * len(x))
        covered = torch.cat([benign.reshape(len(x), ratio, *x.shape[1:]), x[:, None]], 1)
        return desk.transcript(covered.flatten(0, 1))

    return ask


def enough(images: Tensor, count: int) -> Tensor:
    """`count` images: these, then copies shifted by one pixel, then all again."""
    if count > len(images):
        images = shift_images(images)
    return images[torch.arange(count, device=images.device) % len(images)]


def shift_images(images: Tensor) -> Tensor:
    """The images (n, C, H, W), followed by all eight shifts of them by one pixel: (9 n, C, H, W)."""
    steps = [(0, 0), *((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)]
    padded = F.pad(images, (1, 1, 1, 1))
    height, width = images.shape[-2:]
    return torch.cat([padded[..., 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width] for dy, dx in steps])


def add_noise(images: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """The images with normal noise of standard deviation `size`, in 0..1."""
    return (images + size * torch.randn(images.shape, generator=generator).to(images)).clamp(0, 1)


def in_turn(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Images dealt to many accounts in turn; each asks its next batch when all others have asked theirs."""
    accounts, found = knowledge.sizes.accounts, []
    for block in x.split(accounts * knowledge.sizes.ask_batch):  # type: ignore[no-untyped-call]
        hands = [slice(i, None, accounts) for i in range(min(accounts, len(block)))]
        replies = [desk.ask(block[hand], f"thief {i}") for i, hand in enumerate(hands)]
        answers = replies[0][0].new_empty(len(block), knowledge.classes)
        answered = replies[0][1].new_empty(len(block))
        for hand, (some, came) in zip(hands, replies, strict=True):
            answers[hand], answered[hand] = some, came
        found.append(Transcript(block[answered], answers[answered]))
    return joined(*found)


def near_records(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Each image, then noisy copies of it: close to a recorded query a stateful defense answers honestly."""
    copies = knowledge.sizes.repeats
    noisy = add_noise(x.repeat_interleave(copies, 0), JITTER, generator)
    together = torch.cat([x[:, None], noisy.view(len(x), copies, *x.shape[1:])], 1)
    return desk.transcript(together.flatten(0, 1))


def remapped(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Images whose true labels it bought, spread among the others: where classes were exchanged, exchange them back."""
    benign, truth = known(knowledge.benign, "benign")
    bought = min(knowledge.sizes.true_labels, len(benign), len(x) // 2)
    images = torch.cat([benign[:bought], x[: len(x) - bought]])
    labels = torch.cat([truth[:bought].to(x.device), truth.new_full((len(x) - bought,), -1, device=x.device)])
    order = evenly(bought, len(x) - bought).to(x.device)
    answers, answered = desk.ask(images[order])
    images, labels, answers = images[order][answered], labels[order][answered], answers[answered]
    rows = (labels >= 0).nonzero().flatten()
    answers = exchanged(answers, exchange(answers[rows].argmax(1), labels[rows], answers.shape[1]))
    answers[rows] = nn.functional.one_hot(labels[rows], answers.shape[1]).to(answers)
    return Transcript(images, answers)


def evenly(few: int, many: int) -> Tensor:
    """An order of few + many rows that spreads the first `few` evenly among the others."""
    places = [(torch.arange(count) + 0.5) / max(1, count) for count in (few, many)]
    return torch.cat(places).argsort(stable=True)


def exchange(told: Tensor, truth: Tensor, classes: int) -> Tensor:
    """For every class (K,) the one it most often was in truth; itself where nobody voted, or in a draw with it."""
    votes = 0.5 * torch.eye(classes, device=told.device)
    votes.index_put_((told, truth), torch.ones(len(told), device=told.device), accumulate=True)
    return votes.argmax(1)


def exchanged(answers: Tensor, becomes: Tensor) -> Tensor:
    """Answers (n, K) with the entry of class k moved to class becomes[k]."""
    return torch.zeros_like(answers).index_add_(1, becomes, answers)


def joined(*parts: Transcript) -> Transcript:
    """Transcripts one after the other."""
    return Transcript(torch.cat([part.x for part in parts]), torch.cat([part.answers for part in parts]))
