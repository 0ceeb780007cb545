"""Attackers who know the sentinel: they look usual, earn good will, hide in cover traffic, or come as many.

A `Plan` is what an attacker sends; `carry_out` sends it to a guard and returns the `Loot`. Some attackers here know
what they could not know in earnest, such as the victim's own scores; that makes them stronger, not the strongest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from queen.errors import OptionError, RefusedError
from queen.guard import Guard
from queen.types import Reply

BATCH = 32


@dataclass(frozen=True)
class Plan:
    """Images (n, C, H, W) in the order they are sent, the account each comes from, and which of them are the attack;
    the others are cover."""

    images: Tensor
    accounts: NDArray[np.int64]
    attack: NDArray[np.bool_]


@dataclass(frozen=True)
class Loot:
    """What a plan brought: answers (n, K), and for every query whether it was honest, alarmed, refused; and, which the
    attacker never sees, the verdicts' letters."""

    plan: Plan
    answers: Tensor
    honest: NDArray[np.bool_]
    alarmed: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    letters: str = ""

    @property
    def honest_answers(self) -> int:
        """Honest answers to attack queries."""
        return int((self.honest & self.plan.attack).sum())

    @property
    def alarm_at(self) -> int | None:
        """How many attack queries had been sent when the first alarm came, the one that raised it included."""
        if not self.alarmed.any():
            return None
        return int(self.plan.attack[: self.alarmed.argmax() + 1].sum())

    def training_set(self, keep: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Images and answers of the queries to keep; refused ones have no answer."""
        rows = torch.from_numpy(np.flatnonzero(keep & ~self.refused))
        return self.plan.images[rows], self.answers[rows]


def plain(pool: Tensor) -> Plan:
    """Sends a pool of images, one after the other, from one account."""
    return Plan(pool, np.zeros(len(pool), np.int64), np.ones(len(pool), np.bool_))


def look_alike(pool: Tensor, scores: Sequence[float], count: int) -> Plan:
    """Sends only the `count` images that look most usual, by scores (high is foreign) it should not know."""
    return plain(pool[torch.as_tensor(scores).argsort(stable=True)[:count]])


def warm_up(pool: Tensor, benign: Tensor) -> Plan:
    """Sends benign images first, to earn good will."""
    return _joined([(benign, False), (pool, True)])


def cover(pool: Tensor, benign: Tensor, ratio: int) -> Plan:
    """Sends `ratio` benign images before every attack query, for as long as the benign ones last."""
    if ratio < 1:
        raise OptionError(f"ratio must be at least 1, got {ratio}")
    rounds = min(len(pool), len(benign) // ratio)
    if rounds == 0:
        raise OptionError(f"{len(benign)} benign images are too few for cover of {ratio} to 1")
    hidden = benign[: rounds * ratio].reshape(rounds, ratio, *benign.shape[1:])
    images = torch.cat([hidden, pool[:rounds, None]], 1).flatten(0, 1)
    attack = np.tile(np.arange(ratio + 1) == ratio, rounds)
    return Plan(images, np.zeros(len(images), np.int64), attack)


def many_accounts(plan: Plan, accounts: int) -> Plan:
    """The same queries in the same order, dealt to accounts in turn."""
    return replace(plan, accounts=np.arange(len(plan.images)) % accounts)


def jittered(images: Tensor, count: int, size: float, generator: torch.Generator) -> Tensor:
    """`count` noisy copies of a few images, in turn, in the range 0..1."""
    copies = images[torch.arange(count) % len(images)]
    return (copies + size * torch.randn(copies.shape, generator=generator).to(copies)).clamp(0, 1)


def shifted(images: Tensor) -> Tensor:
    """All eight shifts by one pixel, after the images themselves: nine times as many that still look real."""
    steps = [(0, 0), *((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)]
    padded = F.pad(images, (1, 1, 1, 1))
    height, width = images.shape[-2:]
    return torch.cat([padded[..., 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width] for dy, dx in steps])


def carry_out(plan: Plan, guard: Guard, *, groups: Sequence[str] = ()) -> Loot:
    """Send the plan's queries in their order, in batches where one account sends several in a row."""
    answers, alarmed, refused, honest, letters = [], [], [], [], []
    for account, run in groupby(range(len(plan.images)), key=lambda i: int(plan.accounts[i])):
        rows = list(run)
        for part in plan.images[rows[0] : rows[-1] + 1].split(BATCH):  # type: ignore[no-untyped-call]
            reply = _ask(guard, part, f"account {account}", groups)
            answers.append(reply.probabilities)
            alarmed.append(reply.alarmed)
            refused.append(reply.refused)
            letters += [verdict.value for verdict in reply.verdicts]
            # Decoys keep the numbers and refusals are flat: what equals the honest answer is honest.
            honest.append((reply.probabilities == guard.measure(part).honest).all(1).cpu().numpy() & ~reply.refused)
    flags = {"honest": honest, "alarmed": alarmed, "refused": refused}
    joined = {name: np.concatenate(parts) for name, parts in flags.items()}
    return Loot(plan, torch.cat(answers), letters="".join(letters), **joined)


def remap(loot: Loot, rows: NDArray[np.int64], labels: Tensor) -> Tensor:
    """Labels (n,) for all answers after the best exchange of classes that the true labels of some rows suggest."""
    told = loot.answers.argmax(1)
    classes = loot.answers.shape[1]
    votes = torch.zeros(classes, classes)
    votes.index_put_((told[rows], labels), torch.ones(len(rows)), accumulate=True)
    return votes.argmax(1)[told]


def _joined(parts: Sequence[tuple[Tensor, bool]]) -> Plan:
    images = torch.cat([images for images, _ in parts])
    attack = np.concatenate([np.full(len(images), flag) for images, flag in parts])
    return Plan(images, np.zeros(len(images), np.int64), attack)


def _ask(guard: Guard, x: Tensor, client: str, groups: Sequence[str]) -> Reply:
    try:
        return guard.answer(x, client=client, groups=groups)
    except RefusedError as refusal:
        return refusal.reply
