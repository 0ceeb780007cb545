"""The whole online pipeline: x -> u -> (y, z) -> judge -> act -> answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen import keyed
from queen.bundle import Bundle, with_options
from queen.core import inputs
from queen.core.perturb import move_feature, move_feature_any_head, reverse_gradient
from queen.core.shadows import draw_mean
from queen.folder import Model, load_bundle, save_bundle
from queen.ledger import Ledger, MemoryLedger
from queen.ledger.base import check_client
from queen.policy import Action, find_policy
from queen.types import Inputs, ModelError, NotFiniteError, OptionError, Oracle, Reply


class Guard:
    """Stands between a model and its clients and answers each of them.

    A guard is a fitted `Bundle`, a ledger that remembers what each client has seen, and a secret from which every
    random choice is drawn, so that a repeated query gets the same answer.
    """

    def __init__(self, bundle: Bundle, *, ledger: Ledger | None = None, secret: bytes | None = None) -> None:
        self.bundle = bundle
        self.ledger: Ledger = MemoryLedger() if ledger is None else ledger
        if not callable(getattr(self.ledger, "judge", None)):
            raise OptionError(f"expected a ledger such as SqliteLedger(path), got {type(ledger).__name__}")
        self._secret = keyed.new_secret() if secret is None else keyed.check_secret(secret)
        self._policy = find_policy(bundle.policy)
        linear, centres = bundle.split.linear, bundle.geometry.feature_centres
        with torch.inference_mode():
            self._centre_logits = linear(centres.to(linear.weight.dtype)).float() if linear else None
            self._centre_squares = torch.linalg.vecdot(centres, centres)

    def answer(self, x: Inputs, *, client: str) -> Reply:
        """Answer one batch (n, *input) of one client, rows in arrival order: (n, K) probabilities and verdicts.

        Whatever is wrong with the batch is said before the ledger changes; the ledger is written before the answer.
        """
        check_client(client)
        bundle = self.bundle
        x = inputs.to(inputs.check(x, bundle.probe.x), bundle.probe.logits.device)
        with torch.inference_mode():
            features, logits = self._run(x)
            if not inputs.is_finite(logits):
                raise NotFiniteError("the model's logits are NaN or infinite for this input")
            honest = logits.softmax(1)
            labels = logits.argmax(1)
            points = bundle.geometry.relative(bundle.mapping(features), labels)
            judgement = self.ledger.judge(client, labels.cpu().numpy(), points.cpu().numpy(), bundle.limits)
            answers = honest
            if not bundle.observe:
                answers = self._act(self._policy.actions(judgement), client, x, features, logits, honest)
        # A tensor made in inference mode may not enter autograd, and clients train students on answers.
        return Reply(answers.clone(), judgement.verdicts)

    def _run(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Features and logits in float32; what the network cannot digest is the client's mistake, not a crash."""
        try:
            features, logits = self.bundle.split(x)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise ModelError(f"the model cannot run on this input: {' '.join(str(error).split())[:200]}") from error
        return features.float(), logits.float()

    def _act(
        self, actions: NDArray[np.int8], client: str, x: Inputs, features: Tensor, logits: Tensor, honest: Tensor
    ) -> Tensor:
        """Replace the answers that the policy does not leave honest."""
        answers = honest
        for action in (Action.MOVE, Action.REVERSE):
            chosen = np.flatnonzero(actions == action)
            if len(chosen) == 0:
                continue
            if len(chosen) == len(actions):
                return self._perturb(action, client, x, features, logits, honest)
            rows = torch.from_numpy(chosen).to(honest.device)
            picked = (inputs.take(x, rows), features[rows], logits[rows], honest[rows])
            answers = answers.index_copy(0, rows, self._perturb(action, client, *picked))
        return answers

    def _perturb(
        self, action: Action, client: str, x: Inputs, features: Tensor, logits: Tensor, honest: Tensor
    ) -> Tensor:
        if action is Action.MOVE:
            return self._move(features, logits)
        return reverse_gradient(honest, self._pirate(client, x, features), keep_label=self.bundle.keep_label)

    def _move(self, features: Tensor, logits: Tensor) -> Tensor:
        centres, max_steps = self.bundle.geometry.feature_centres, self._policy.max_steps
        if self._centre_logits is None:
            return move_feature_any_head(features, logits, self.bundle.split.head_of, centres, max_steps=max_steps)
        return move_feature(
            features,
            logits,
            centres,
            self._centre_logits,
            centre_squares=self._centre_squares,
            max_steps=max_steps,
        )

    def _pirate(self, client: str, x: Inputs, features: Tensor) -> Tensor:
        """What a simulated pirate would answer: the mean of `draw` shadows, drawn by the keyed hash of the query."""
        bundle = self.bundle
        probabilities = bundle.shadows.probabilities(features, x)
        digests = keyed.query_digests(self._secret, f"{bundle.identity}\0{client}", x)
        drawn = keyed.draw(digests, len(bundle.shadows), bundle.draw)
        return draw_mean(probabilities, drawn.to(probabilities.device))

    def as_client(self, name: str) -> Oracle:
        """The guard as one client sees it: Tensor (n, *input) -> Tensor (n, K), and nothing else."""
        check_client(name)
        return lambda x: self.answer(x, client=name).probabilities

    def with_options(self, **changes: Any) -> Guard:
        """The same guard, ledger and secret under other options: policy, observe, limits, keep_label, draw."""
        return Guard(with_options(self.bundle, **changes), ledger=self.ledger, secret=self._secret)

    def fresh(self, **changes: Any) -> Guard:
        """The same with an empty memory ledger: a guard that has seen nobody yet."""
        return Guard(with_options(self.bundle, **changes), secret=self._secret)

    @property
    def report(self) -> dict[str, Any]:
        """What fitting found: the map's health, spreads, budgets, shadows, warnings, timings."""
        return self.bundle.report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle folder; the secret goes to `<path>.secret` beside it (mode 0600), never inside."""
        save_bundle(self.bundle, path)
        keyed.write_secret(keyed.secret_path(path), self._secret)


def load(
    path: str | os.PathLike[str],
    model: Model | None = None,
    *,
    ledger: Ledger | None = None,
    secret: bytes | str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    **changes: Any,
) -> Guard:
    """A guard from a bundle folder.

    `model` is needed only where the bundle names no factory. `secret` is the secret itself or its file, by default
    `<path>.secret`. `changes` override stored options: policy, observe, limits, keep_label, draw.
    """
    bundle = load_bundle(path, model, device=device, **changes)
    if secret is None:
        secret = keyed.secret_for(path)
    elif not isinstance(secret, bytes):
        secret = keyed.read_secret(Path(secret))
    return Guard(bundle, ledger=ledger, secret=secret)
