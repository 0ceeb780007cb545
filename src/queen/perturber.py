"""A measured batch, and what the actions of a policy make of its answers: moved, reversed, decoys, labels, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.core import inputs
from queen.core.perturb import move_feature, move_feature_any_head, reverse_gradient
from queen.core.shadows import draw_mean
from queen.policy import Action, Policy
from queen.secret import draw, query_digests
from queen.sentinel.bets import Bets
from queen.sentinel.rounding import round_answers
from queen.sentinel.runtime import SentinelRuntime
from queen.types import Inputs


@dataclass(frozen=True)
class MeasuredBatch:
    """A batch that went through the model and the map, as the ledger and the policy need it."""

    x: Inputs  # n rows, checked and on the model's device
    features: Tensor  # (n, D)
    logits: Tensor  # (n, K)
    honest: Tensor  # (n, K), the model's own probabilities
    labels: NDArray[np.int64]  # (n,), as the model predicts them
    points: NDArray[np.floating[Any]]  # (n, 2), relative to the disc of their class
    bets: Bets | None  # what the sentinel bets on every row, if it watches

    def take(self, rows: NDArray[np.intp]) -> MeasuredBatch:
        """The batch of these rows only."""
        picked = torch.from_numpy(rows).to(self.honest.device)
        return MeasuredBatch(
            inputs.take(self.x, picked),
            self.features[picked],
            self.logits[picked],
            self.honest[picked],
            self.labels[rows],
            self.points[rows],
            self.bets and self.bets.take(rows.tolist()),
        )


class Perturber:
    """Carries out the actions of a policy on measured batches; the same query of the same client is answered alike."""

    def __init__(self, bundle: Bundle, policy: Policy, sentinel: SentinelRuntime, secret: bytes) -> None:
        self._bundle, self._policy, self._sentinel, self._secret = bundle, policy, sentinel, secret
        self._digits = bundle.digits
        linear, centres = bundle.split.linear, bundle.geometry.feature_centres
        with torch.inference_mode():
            self._centre_logits = linear(centres.to(linear.weight.dtype)).float() if linear else None
            self._centre_squares = torch.linalg.vecdot(centres, centres)

    def act(self, actions: NDArray[np.int8], clients: Sequence[str], batch: MeasuredBatch) -> Tensor:
        """The answers after the policy's actions; honest rows cost no more than their rounding."""
        answers = self._round(batch.honest)
        for action in map(Action, sorted(set(actions.tolist()) - {Action.HONEST})):
            chosen = np.flatnonzero(actions == action)
            if len(chosen) == len(actions):
                return self._perturb(action, clients, batch)
            changed = self._perturb(action, [clients[row] for row in chosen.tolist()], batch.take(chosen))
            answers = answers.index_copy(0, torch.from_numpy(chosen).to(answers.device), changed)
        return answers

    def act_uniformly(self, actions: NDArray[np.int8], clients: Sequence[str], batch: MeasuredBatch) -> Tensor:
        """The same answers, but every possible action is computed for every row, so that the time tells nothing."""
        answers = self._round(batch.honest)
        chosen = torch.from_numpy(actions).to(answers.device)[:, None]
        for action in self._policy.possible:
            changed = self._perturb(action, clients, batch)
            answers = torch.where(chosen == int(action), changed, answers)
        return answers

    def _perturb(self, action: Action, clients: Sequence[str], batch: MeasuredBatch) -> Tensor:
        """The answers (n, K) to a batch whose rows all get the same action."""
        honest = batch.honest
        if action is Action.MOVE:
            return self._move(batch)
        if action is Action.DECOY and batch.bets is not None:  # only the sentinel gives decoys, and it always bets
            return self._sentinel.decoys(batch.bets).to(honest)
        if action is Action.LABEL:
            return torch.nn.functional.one_hot(batch.logits.argmax(1), honest.shape[1]).to(honest)
        if action is Action.REFUSE:
            return torch.full_like(honest, 1 / honest.shape[1])
        return self._round(self._reverse(clients, batch))

    def _round(self, answers: Tensor) -> Tensor:
        """Answers (n, K) with as many digits as clients may see."""
        return answers if self._digits is None else round_answers(answers, self._digits)

    def _move(self, batch: MeasuredBatch, *, as_logits: bool = False) -> Tensor:
        """Answers for features that were moved, by the linear head in closed form or step by step by any other head."""
        features, logits = batch.features, batch.logits
        centres = self._bundle.geometry.feature_centres
        how: dict[str, Any] = {"max_steps": self._policy.max_steps, "as_logits": as_logits}
        if self._centre_logits is None:
            return move_feature_any_head(features, logits, self._bundle.split.head_of, centres, **how)
        return move_feature(features, logits, centres, self._centre_logits, centre_squares=self._centre_squares, **how)

    def _reverse(self, clients: Sequence[str], batch: MeasuredBatch) -> Tensor:
        """Answers (n, K) that reverse the gradient of a simulated pirate."""
        pirate = self._mean(clients, batch.x, self._bundle.shadows.probabilities(batch.features, batch.x))
        # The sentinel reverses the answers of thieves: a kept label would be just what they want.
        keep_label = self._bundle.keep_label and self._bundle.policy != "sentinel"
        return reverse_gradient(batch.honest, pirate, keep_label=keep_label)

    def _mean(self, clients: Sequence[str], x: Inputs, said: Tensor) -> Tensor:
        """The mean (n, K) of what `draw` shadows said (n, S, K), drawn by the keyed hash of the query."""
        bundle = self._bundle
        digests = query_digests(self._secret, [f"{bundle.identity}\0{client}" for client in clients], x)
        return draw_mean(said, draw(digests, len(bundle.shadows), bundle.draw).to(said.device))
