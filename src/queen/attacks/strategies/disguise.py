"""Attackers who hide among honest clients, or who see through a disguise of the answers.

They ask for usual images, earn good will first, hide in cover traffic, share the queries among accounts, or buy a few
true labels. They learn from all answers, those to cover images too: no images are more useful to ask for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Ask, CountedOracle, Knowledge, Transcript, join
from queen.attacks.strategies.requirements import require
from queen.core.split import run_model
from queen.training import train

JITTER = 0.02  # noise per pixel (its range is 1): the image still looks the same, and is near it on the map
ENERGY_BATCH = 512


def choose_most_usual(knowledge: Knowledge, count: int, generator: torch.Generator) -> Tensor:
    """The rows (count,) of the pool with the lowest energy in a network that the attacker trains on benign images."""
    x, labels = require(knowledge.benign, "benign")
    own = train(knowledge.make_thief(generator), x, labels, knowledge.schedule, generator)
    return energy(own, knowledge.pool).argsort(stable=True)[:count]


@torch.inference_mode()
def energy(model: nn.Module, x: Tensor) -> Tensor:
    """-logsumexp of the logits (n,): low for images like those the model was trained on."""
    parts = x.split(ENERGY_BATCH)  # type: ignore[no-untyped-call]
    return torch.cat([-run_model(model, part).float().logsumexp(1) for part in parts])


def ask_after_warm_up(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for benign images first, in place of as many others; at most half of all are benign."""
    benign = require(knowledge.benign, "benign")[0][: min(knowledge.sizes.warm_up, len(x) // 2)]
    return oracle.transcript(torch.cat([benign, x[: len(x) - len(benign)]]))


def ask_behind_cover(ratio: int) -> Ask:
    """Ask for `ratio` benign images before each of the others."""

    def ask(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        benign = repeat_images(require(knowledge.benign, "benign")[0], ratio * len(x))
        covered = torch.cat([benign.reshape(len(x), ratio, *x.shape[1:]), x[:, None]], 1)
        return oracle.transcript(covered.flatten(0, 1))

    return ask


def ask_for_own_kind(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for benign images alone, in place of all others: nobody can tell such a thief from a client."""
    return oracle.transcript(repeat_images(require(knowledge.benign, "benign")[0], len(x)))


def is_cover(count: int, ratio: int) -> Tensor:
    """Which (count,) of the first `count` queries of such an attacker are cover."""
    return torch.arange(count) % (ratio + 1) < ratio


def repeat_images(images: Tensor, count: int) -> Tensor:
    """`count` images: the given ones, then copies shifted by one pixel, then all of these again."""
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


def ask_in_turn(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Deal the images to many accounts; each asks its next batch when all others have asked theirs."""
    accounts, parts = knowledge.sizes.accounts, []
    for block in x.split(accounts * knowledge.sizes.ask_batch):  # type: ignore[no-untyped-call]
        hands = [slice(i, None, accounts) for i in range(min(accounts, len(block)))]
        replies = [oracle.ask(block[hand], f"thief {i}") for i, hand in enumerate(hands)]
        answers = replies[0][0].new_empty(len(block), knowledge.classes)
        answered = replies[0][1].new_empty(len(block))
        for hand, (hand_answers, hand_answered) in zip(hands, replies, strict=True):
            answers[hand], answered[hand] = hand_answers, hand_answered
        parts.append(Transcript(block[answered], answers[answered]))
    return join(parts)


def ask_near_records(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for each image, then noisy copies of it: near a recorded query, a stateful defense answers honestly."""
    copies = knowledge.sizes.repeats
    noisy = add_noise(x.repeat_interleave(copies, 0), JITTER, generator)
    together = torch.cat([x[:, None], noisy.view(len(x), copies, *x.shape[1:])], 1)
    return oracle.transcript(together.flatten(0, 1))


def ask_and_remap(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Spread images whose true labels were bought among the others, and undo the exchange of classes that they show."""
    benign, truth = require(knowledge.benign, "benign")
    bought = min(knowledge.sizes.true_labels, len(benign), len(x) // 2)
    images = torch.cat([benign[:bought], x[: len(x) - bought]])
    labels = torch.cat([truth[:bought].to(x.device), truth.new_full((len(x) - bought,), -1, device=x.device)])
    order = spread_evenly(bought, len(x) - bought).to(x.device)
    answers, answered = oracle.ask(images[order])
    images, labels, answers = images[order][answered], labels[order][answered], answers[answered]
    rows = (labels >= 0).nonzero().flatten()
    answers = apply_exchange(answers, find_exchange(answers[rows].argmax(1), labels[rows], answers.shape[1]))
    answers[rows] = nn.functional.one_hot(labels[rows], answers.shape[1]).to(answers)
    return Transcript(images, answers)


def spread_evenly(few: int, many: int) -> Tensor:
    """An order of few + many rows that spreads the first `few` evenly among the others."""
    places = [(torch.arange(count) + 0.5) / max(1, count) for count in (few, many)]
    return torch.cat(places).argsort(stable=True)


def find_exchange(answered: Tensor, truth: Tensor, classes: int) -> Tensor:
    """For each class (K,), the true class it most often stood for; itself without votes, or in a draw with itself."""
    votes = 0.5 * torch.eye(classes, device=answered.device)
    votes.index_put_((answered, truth), torch.ones(len(answered), device=answered.device), accumulate=True)
    return votes.argmax(1)


def apply_exchange(answers: Tensor, becomes: Tensor) -> Tensor:
    """Answers (n, K) with the entry of class k moved to class becomes[k]."""
    return torch.zeros_like(answers).index_add_(1, becomes, answers)
