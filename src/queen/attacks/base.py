"""The words of every attack: the counted oracle it asks, what it knows beside the answers, and what it collected.

An `Attack` is a strategy in three steps (ask, believe, learn); a `QueryStrategy` picks the images it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from queen.cache import Cache
from queen.defenses.base import Endpoint
from queen.errors import QueenError, RefusedError
from queen.training import Schedule, train
from queen.types import Oracle


class BudgetError(QueenError, ValueError):
    """A budget that buys no image, or more than the pool has, or that was exceeded."""


PUBLISHED_WIDTHS: Mapping[int, tuple[int, ...]] = {10: (128, 64), 43: (512, 256), 100: (1024, 512), 200: (2048, 1024)}
"""Widths of D-DAE's restorer by number of classes; between two numbers, those of the smaller."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Every size of the attacks; the defaults are the published ones, and a benchmark lists those that differ."""

    table: int = 1_000_000  # pairs of a clean and a defended answer that a recovery attack learns from
    concentration: float = 8.0  # of the Dirichlet distribution that clean answers are drawn from, per class
    shadows: int = 20  # networks whose answers stand in for the clean ones (ddae)
    shadow_epochs: int = 5
    shadow_steps: int = 200  # at least, however few images there are
    shadow_network: str = "alexnet"
    generator_widths: tuple[int, ...] | None = None  # as published for the number of classes
    generator_epochs: int = 200
    generator_batch: int = 1024
    jbda_seeds: int = 1000
    jbda_directions: int = 3
    jbda_steps: int = 8
    jbda_epsilon: float = 0.1
    jbda_clip: str = "pixel"  # or "normalised" or "peer": what may be asked, and in which units epsilon is
    jbda_min_steps: int = 240  # of a round's thief: as many as 30 epochs of 1000 images in batches of 128 have
    active_first: float = 0.1  # share of the budget that goes to random images (active_thief)
    active_rounds: int = 10  # after them
    active_candidates: float = 1.0  # images that a round picks from, the most unsure ones, in budgets
    data_free_batch: int = 256  # images asked at once, and learned from in a step
    data_free_steps: int = 4  # of the thieves after each batch: one on its answers, the others on earlier ones
    data_free_replay: int = 1_000_000  # last answers that it remembers and learns from
    data_free_width: int = 64  # of the generator
    data_free_rate: float = 1e-4  # at which it learns
    views: int = 3  # shifted or mirrored copies asked per image (smoothing, s4l_average)
    mirror: bool = True  # whether views may be mirrored
    peer_smoothing: bool = False  # as published: ask every view of `budget` images, which spends `views` budgets
    repeats: int = 3  # of an image (repeat_average), or noisy copies of it (near_record)
    accounts: int = 10  # (many_accounts, two_accounts)
    true_labels: int = 100  # images whose true label the attacker bought (remap)
    warm_up: int = 1000  # benign images asked first (warm_up)
    provoking: int = 100  # noise images sent first (provoked_alarm)
    honest_anchors: int = 12  # its first images, answered before any alarm (path)
    labelled_anchors: int = 30  # benign images with known labels (path_labelled)
    path_steps: int = 12  # from an image to an anchor, at least two
    small_steps: int = 60  # from an image to the next (small_steps)
    ask_batch: int = 256  # images per request

    def widths_for(self, classes: int) -> tuple[int, ...]:
        """The widths of D-DAE's restorer: those given, or the published ones for this number of classes."""
        if self.generator_widths is not None:
            return self.generator_widths
        return PUBLISHED_WIDTHS[max(k for k in PUBLISHED_WIDTHS if k <= max(classes, min(PUBLISHED_WIDTHS)))]


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker may know beside the oracle's answers; None means that it does not know.

    `pool` (N, ...) holds its images in 0..1, `pool_labels` (N,) their labels, of other classes than the victim's.
    `make_thief` builds the network it trains, by `schedule`. `simulate` is the defense's map (`Endpoint.simulate`).
    `clean` answers without the defense: an oracle that no real attacker has. `benign` are images like those the victim
    was trained on, and their labels. `rebuild` sets up the same defense around a model of the attacker's own. `encoder`
    is the victim's network without its head, which gives features (n, D): known where a public encoder got a new head.
    `on_epoch` and `findings` belong to whoever watches the attack, not to the attacker: an attack writes into
    `findings` what it measured on the way, for results to show. `cache` stores networks that several attacks train
    alike, under names made of `key`, which identifies the pool, and `seed`, which tells runs apart. `defense_key`
    identifies the defense that `simulate` is the map of; attacks that simulate the same then share the work.
    """

    classes: int
    pool: Tensor
    make_thief: Callable[[torch.Generator], nn.Module]
    schedule: Schedule = field(default_factory=Schedule)
    sizes: Sizes = field(default_factory=Sizes)
    pool_labels: Tensor | None = None
    simulate: Callable[[Tensor, Tensor, torch.Generator], Tensor] | None = None
    clean: Oracle | None = None
    benign: tuple[Tensor, Tensor] | None = None
    rebuild: Callable[[nn.Module, Tensor, Tensor, torch.Generator], Endpoint] | None = None
    encoder: nn.Module | None = None
    on_epoch: Callable[[nn.Module], None] | None = None
    findings: dict[str, Any] = field(default_factory=dict)
    cache: Cache | None = None
    key: str = ""
    defense_key: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Transcript:
    """Images x (n, ...) in the order they were asked, and the answers (n, K) that the attacker believes.

    `thief` is a network that a query strategy has trained on the way, if the attacker wants to go on with it;
    `forgotten` is the number of earlier answers, which only that thief has seen.
    """

    x: Tensor
    answers: Tensor
    thief: nn.Module | None = None
    forgotten: int = 0

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> Transcript:
        """The given rows only."""
        return replace(self, x=self.x[rows], answers=self.answers[rows])

    def with_answers(self, answers: Tensor) -> Transcript:
        """The same images with these answers instead."""
        return replace(self, answers=answers)


def join(parts: Sequence[Transcript]) -> Transcript:
    """One transcript of several, one after the other."""
    return Transcript(torch.cat([part.x for part in parts]), torch.cat([part.answers for part in parts]))


class CountedOracle:
    """What an attacker asks: counts every query against one budget, whichever account it comes from."""

    def __init__(self, open_account: Callable[[str], Oracle], budget: int, batch: int = 256) -> None:
        self._open_account, self._accounts = open_account, dict[str, Oracle]()
        self.budget, self.used, self._batch = budget, 0, batch

    def ask(self, x: Tensor, account: str = "thief") -> tuple[Tensor, Tensor]:
        """Answers (n, K) to x (n, ...), and which rows (n,) were answered: a defense may refuse some of them."""
        if self.used + len(x) > self.budget:
            raise BudgetError(f"the budget is {self.budget} queries, {self.used} are used, {len(x)} more were asked")
        self.used += len(x)
        oracle = self._accounts.setdefault(account, self._open_account(account))
        answers, answered = [], []
        for part in x.split(self._batch):  # type: ignore[no-untyped-call]
            try:
                answers.append(oracle(part))
                answered.append(torch.ones(len(part), dtype=torch.bool, device=x.device))
            except RefusedError as refusal:
                answers.append(refusal.reply.probabilities)
                answered.append(torch.from_numpy(~refusal.reply.refused).to(x.device))
        return torch.cat(answers), torch.cat(answered)

    def transcript(self, x: Tensor, account: str = "thief") -> Transcript:
        """The rows of x that were answered, and their answers."""
        answers, answered = self.ask(x, account)
        return Transcript(x[answered], answers[answered])


def ask_from_one_account(
    oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator
) -> Transcript:
    """Ask for the images as they are, each once, from one account."""
    return oracle.transcript(x)


def believe_answers(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Believe the answers as they are."""
    return transcript


def train_thief(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A new network, or a copy of the thief that comes with the transcript, trained on the answers."""
    thief = knowledge.make_thief(generator) if transcript.thief is None else deepcopy(transcript.thief)
    return train(thief, transcript.x, transcript.answers, knowledge.schedule, generator, on_epoch=knowledge.on_epoch)


Ask = Callable[[CountedOracle, Tensor, Knowledge, torch.Generator], Transcript]
Believe = Callable[[Transcript, Knowledge, torch.Generator], Transcript]
Learn = Callable[[Transcript, Knowledge, torch.Generator], nn.Module]
Choose = Callable[[Knowledge, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Attack:
    """A strategy in three steps: how images are asked, what is believed of the answers, how the thief is trained.

    `cost(sizes)` is the number of queries per image: the more, the fewer images the budget buys. `overspend(sizes)` is
    the number of budgets the attack spends: 1, except where a published attack counts differently, which results flag.
    `choose` picks rows of the pool in place of the query strategy. `queries` names the query strategies it works with.
    `knows` names what it knows that no real attacker does ("prior": clean answers; "defense": the defender's own
    networks) or only a lucky or rich one ("encoder": the victim's network up to its head, where that is a public one;
    "benign": images like the victim's). `adaptive`: made against our own policies.
    """

    ask: Ask = ask_from_one_account
    believe: Believe = believe_answers
    learn: Learn = train_thief
    cost: Callable[[Sizes], int] = lambda _: 1
    overspend: Callable[[Sizes], int] = lambda _: 1
    choose: Choose | None = None
    queries: tuple[str, ...] = ("knockoff", "jbda_tr", "active_thief")
    knows: Sequence[str] = ()
    adaptive: bool = False

    def steal(self, transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
        """A thief, trained on what the attack believes of a transcript."""
        return self.learn(self.believe(transcript, knowledge, generator), knowledge, generator)


QueryStrategy = Callable[[CountedOracle, Attack, Knowledge, int, torch.Generator], Transcript]
"""(oracle, attack, knowledge, budget, generator) -> transcript; needs the attack because some train thieves."""
