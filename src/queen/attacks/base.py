"""What attackers hold: a counted way to ask, what they know beside it, and what they collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from queen.cache import Cache
from queen.defenses.base import Endpoint, Keeps
from queen.errors import QueenError, RefusedError
from queen.training import Schedule, train
from queen.types import Oracle


class BudgetError(QueenError, ValueError):
    """A budget that is larger than the pool, or was exceeded."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Every size of the published attacks; the defaults are the published ones, and a benchmark prints smaller ones."""

    table: int = 1_000_000  # pairs that a recovery attack learns from
    concentration: float = 8.0  # of the Dirichlet distribution of drawn clean answers, times the number of classes
    shadows: int = 20  # networks whose answers stand in for clean ones (ddae)
    shadow_epochs: int = 5
    shadow_network: str = "alexnet"
    generator_widths: tuple[int, ...] = (128, 64)
    generator_epochs: int = 200
    generator_batch: int = 1024
    jbda_seeds: int = 1000
    jbda_directions: int = 3
    jbda_steps: int = 8
    jbda_epsilon: float = 0.1
    jbda_clip: str = "pixel"  # keep pixels in 0..1; "peer": clip normalised numbers to 0..1, as published code does
    views: int = 3  # of an image (smoothing, s4l_average)
    mirror: bool = True  # whether some of the views are mirrored
    peer_smoothing: bool = False  # ask for every view of as many images as the budget: three times the queries
    repeats: int = 3
    accounts: int = 10
    true_labels: int = 100  # that a re-mapping attacker bought
    warm_up: int = 1000
    ask_batch: int = 256


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker may know beside the Oracle; what is None it does not know.

    `pool` (N, ...) are its images in 0..1, `pool_labels` their own labels (of other classes than the victim's).
    `make_thief` and `schedule` say what it trains. `simulate` is the defense's map (`Endpoint.simulate`), `keeps_label`
    what the defense declares. `clean` answers without the defense: an oracle that no real attacker has. `benign` are
    images and labels of the victim's own kind. `rebuild` sets up the same defense around an own model.
    `on_epoch` belongs to whoever watches the attack, not to the attacker. `cache` keeps networks that many attacks
    train alike; `key` names the pool there, and `seed` tells runs apart.
    """

    classes: int
    pool: Tensor
    make_thief: Callable[[torch.Generator], nn.Module]
    schedule: Schedule = field(default_factory=Schedule)
    sizes: Sizes = field(default_factory=Sizes)
    pool_labels: Tensor | None = None
    keeps_label: Keeps = "no"
    simulate: Callable[[Tensor, Tensor, torch.Generator], Tensor] | None = None
    clean: Oracle | None = None
    benign: tuple[Tensor, Tensor] | None = None
    rebuild: Callable[[nn.Module, Tensor, Tensor, torch.Generator], Endpoint] | None = None
    on_epoch: Callable[[nn.Module], None] | None = None
    cache: Cache | None = None
    key: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Transcript:
    """Images (n, ...) and what to believe of them (n, K), in the order they were asked."""

    x: Tensor
    answers: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> Transcript:
        """Some of the rows."""
        return Transcript(self.x[rows], self.answers[rows])

    def believing(self, answers: Tensor) -> Transcript:
        """The same images with other answers."""
        return replace(self, answers=answers)


class CountedOracle:
    """Where an attacker asks: counts every query against the budget, whichever account it comes from."""

    def __init__(self, open_account: Callable[[str], Oracle], budget: int, batch: int = 256) -> None:
        self._open_account, self._accounts = open_account, dict[str, Oracle]()
        self.budget, self.used, self._batch = budget, 0, batch

    def ask(self, x: Tensor, account: str = "thief") -> tuple[Tensor, Tensor]:
        """Answers (n, K) to x (n, ...) and which of them came at all (n,): a defense may refuse some."""
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
        """What came back for x."""
        answers, answered = self.ask(x, account)
        return Transcript(x[answered], answers[answered])


def one_account(desk: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Send the images as they are, from one account."""
    return desk.transcript(x)


def as_told(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Believe the answers."""
    return found


def train_thief(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """A new network, trained on what is believed."""
    thief = knowledge.make_thief(generator)
    return train(thief, found.x, found.answers, knowledge.schedule, generator, on_epoch=knowledge.on_epoch)


Ask = Callable[[CountedOracle, Tensor, Knowledge, torch.Generator], Transcript]
Believe = Callable[[Transcript, Knowledge, torch.Generator], Transcript]
Learn = Callable[[Transcript, Knowledge, torch.Generator], nn.Module]
Choose = Callable[[Knowledge, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Attack:
    """A strategy in three steps: how images are asked, what is believed of the answers, how the thief is trained.

    `cost` says how many queries an image takes, by the sizes, so that the budget buys fewer images. `overspend` is how
    many budgets it spends nevertheless: 1, but for a published count that results must flag. `choose` picks rows of the
    pool instead of the query strategy. `queries` names the query strategies it goes with, `knows` what it knows that no
    real attacker does ("prior": clean answers; "defense": the defender's own networks) or only a rich one ("benign":
    images of the victim's own kind), `adaptive` whether it was made against our own policies.
    """

    ask: Ask = one_account
    believe: Believe = as_told
    learn: Learn = train_thief
    cost: Callable[[Sizes], int] = lambda _: 1
    overspend: Callable[[Sizes], int] = lambda _: 1
    choose: Choose | None = None
    queries: tuple[str, ...] = ("knockoff", "jbda_tr")
    knows: Sequence[str] = ()
    adaptive: bool = False

    def steal(self, found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
        """A thief from a transcript."""
        return self.learn(self.believe(found, knowledge, generator), knowledge, generator)


QueryStrategy = Callable[[CountedOracle, Attack, Knowledge, int, torch.Generator], Transcript]
"""(desk, attack, knowledge, budget, generator) -> transcript; JBDA-TR trains thieves on the way, hence the attack."""
