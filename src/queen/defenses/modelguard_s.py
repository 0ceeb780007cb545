"""ModelGuard-S: repeat an earlier answer with the same top class where one is near enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, Victim, count_unchanged
from queen.defenses.checks import check_number
from queen.types import Oracle

EarlierAnswers = dict[int, Tensor]
"""One client's earlier answers by top class: (m, K) in float64, oldest first."""


def repeat(y: Tensor, earlier: EarlierAnswers, *, epsilon: float) -> Tensor:
    """For each row of y (n, K), the oldest earlier answer within l1 distance `epsilon`, else the row itself.

    Rows are answered in order, as if they came one by one; those answered by themselves are added to `earlier`.
    """
    answers = y.double()  # a copy, unless y is in float64 already
    answers = answers.clone() if answers is y else answers
    labels = y.argmax(1)
    for label in torch.unique(labels).tolist():
        rows = (labels == label).nonzero()[:, 0]
        known = earlier.get(label, answers.new_empty(0, y.shape[1]))
        answers[rows], earlier[label] = _repeat_class(answers[rows], known, epsilon)
    return answers.to(y.dtype)


def _repeat_class(y: Tensor, known: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Answers (n, K) to rows of one top class, and all answers of that class so far (m, K)."""
    near = torch.cdist(y, known, p=1) <= epsilon
    answered = near.any(1)
    if len(known):
        y = torch.where(answered[:, None], known[near.to(torch.int8).argmax(1)], y)
    # Older answers come first, so only rows without one can repeat those that this batch adds: one round per addition.
    open_rows = (~answered).nonzero()[:, 0]
    added = []
    while len(open_rows):
        new = y[open_rows[:1]]
        added.append(new)
        near_new = (torch.cdist(y[open_rows], new, p=1) <= epsilon)[:, 0]
        near_new[0] = True
        y[open_rows[near_new]] = new
        open_rows = open_rows[~near_new]
    return y, torch.cat([known, *added])


@dataclass(frozen=True)
class RepeatingEndpoint:
    """Remembers each client's answers by the client's name."""

    victim: Victim
    epsilon: float
    clients: dict[str, EarlierAnswers] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=lambda: Counter(honest=0))

    @property
    def verdicts(self) -> Mapping[str, int]:
        """How many answers were the model's own."""
        return dict(self.counts)

    def client(self, name: str) -> Oracle:
        """The victim's answers, or earlier ones near them."""
        earlier = self.clients.setdefault(name, {})

        def answer(x: Tensor) -> Tensor:
            clean = self.victim.clean(x)
            answers = repeat(clean, earlier, epsilon=self.epsilon)
            self.counts["honest"] += count_unchanged(clean, answers)
            return answers

        return answer

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The answers to a client without earlier ones that sends the rows in order."""
        return repeat(clean, {}, epsilon=self.epsilon)[None]


def build(victim: Victim, generator: torch.Generator, *, epsilon: float = 1.0) -> Endpoint:
    """Start with nothing remembered."""
    check_number("epsilon", epsilon, 0)
    return RepeatingEndpoint(victim, float(epsilon))


DEFENSE = Defense(build, keeps_label="always", stateful=True)
