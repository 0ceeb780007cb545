"""Attackers who go on after the alarm: what they ask once they stand accused, and what they believe of the answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.attacks.base import CountedOracle, Knowledge, Sizes, Transcript, join
from queen.attacks.strategies.cleaning import EQUAL
from queen.attacks.strategies.disguise import JITTER, add_noise


def ask_when_accused(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Send noise first, in place of as many images, so as to be accused at once; at most half of all is noise.

    Whoever stands accused is charged nothing for what follows. The answers to noise are thrown away.
    """
    rest = x[min(knowledge.sizes.provoking, len(x) // 2) :]
    noise = torch.rand((len(x) - len(rest), *x.shape[1:]), generator=generator).to(x)
    oracle.ask(noise)
    return oracle.transcript(rest)


def ask_from_two_accounts(
    oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator
) -> Transcript:
    """Ask for every image from two accounts: one that asks for all of them, and a fresh one as long as there are any.

    Where they agree, that is believed; where they differ, one of them stands accused, and the fresh one is believed.
    """
    old, fresh, answered, _ = _compare_accounts(oracle, x, knowledge)
    answers = torch.where(answered[1][:, None], fresh, old)
    either = answered.any(0)
    return Transcript(x[either], answers[either])


def ask_where_accounts_differ(
    oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator
) -> Transcript:
    """Ask from two accounts alike, and drop what both answer alike after they once differed: decoys, for the same query
    has the same decoy whoever asks."""
    old, fresh, answered, differs = _compare_accounts(oracle, x, knowledge)
    answers = torch.where(answered[1][:, None], fresh, old)
    believed = answered.any(0) & (differs | ~differs.any())
    return Transcript(x[believed], answers[believed])


def _compare_accounts(oracle: CountedOracle, x: Tensor, knowledge: Knowledge) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The answers (n, K) of the first account and of a fresh one, who was answered (2, n), and where they differ (n,).

    Each fresh account asks for an equal share of the images, one batch after the other, and is accused in its turn.
    """
    replies = []
    shares = x.tensor_split(min(len(x), max(1, knowledge.sizes.accounts - 1)))
    for number, share in enumerate(shares):
        replies.append((*oracle.ask(share, "thief"), *oracle.ask(share, f"thief {number}")))
    old, old_answered, fresh, fresh_answered = (torch.cat(parts) for parts in zip(*replies, strict=True))
    differs = ((old - fresh).abs().amax(1) > EQUAL[x.device.type]) & old_answered & fresh_answered
    return old, fresh, torch.stack([old_answered, fresh_answered]), differs


def ask_in_small_steps(
    oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator
) -> Transcript:
    """Go from each image to the next in small steps, so that every query looks like the one before, sent again."""
    steps = knowledge.sizes.small_steps
    shares = (torch.arange(steps, device=x.device) / steps).view(-1, *[1] * (x.ndim - 1))
    following = x.roll(-1, 0)
    return join([oracle.transcript(a * (1 - shares) + b * shares) for a, b in zip(x, following, strict=True)])


def vote_cost(sizes: Sizes) -> int:
    """Queries per image: the image and its noisy copies."""
    return 1 + sizes.repeats


def vote_on_labels(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for each image and noisy copies of it, and believe the label that most answers have on top."""
    votes = torch.zeros(len(x), knowledge.classes, device=x.device)
    for copy in range(vote_cost(knowledge.sizes)):
        answers, answered = oracle.ask(add_noise(x, JITTER, generator) if copy else x)
        votes += F.one_hot(answers.argmax(1), knowledge.classes) * answered[:, None]
    voted = votes.any(1)
    return Transcript(x[voted], F.one_hot(votes.argmax(1), knowledge.classes)[voted].to(answers))
