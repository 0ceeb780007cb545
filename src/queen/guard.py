"""The whole online pipeline: x -> u -> (y, z) -> judge -> act -> answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.bundle.store import Model, load_bundle, save_bundle
from queen.core import inputs
from queen.core.perturb import move_feature, move_feature_any_head, reverse_gradient
from queen.core.shadows import draw_mean
from queen.core.split import id_bounds
from queen.errors import LedgerError, ModelError, NotFiniteError, OptionError, RefusedError
from queen.ledger import Ledger, MemoryLedger
from queen.ledger.base import Judgement
from queen.ledger.rows import check_client, make_rows
from queen.options import Group
from queen.policy import Action, Policy, find_policy
from queen.secret import (
    check_secret,
    draw,
    new_secret,
    query_digests,
    read_secret,
    secret_for,
    secret_path,
    write_secret,
)
from queen.sentinel.evidence import Bets
from queen.sentinel.runtime import Watch
from queen.types import Inputs, Oracle, Reply


@dataclass(frozen=True)
class Measured:
    """A batch as the guard sees it: inputs, features (n, D), logits and honest answers (n, K), predicted labels (n,),
    points relative to their discs (n, 2), and the sentinel's bets."""

    x: Inputs
    features: Tensor
    logits: Tensor
    honest: Tensor
    labels: NDArray[np.int64]
    points: NDArray[np.floating[Any]]
    bets: Bets | None

    def take(self, rows: NDArray[np.intp]) -> Measured:
        """Some rows of it."""
        picked = torch.from_numpy(rows).to(self.honest.device)
        return Measured(
            inputs.take(self.x, picked),
            self.features[picked],
            self.logits[picked],
            self.honest[picked],
            self.labels[rows],
            self.points[rows],
            self.bets and self.bets.take(rows.tolist()),
        )


class Guard:
    """Stands between a model and its clients and answers each of them.

    A guard is a fitted `Bundle`, a ledger that remembers what each client has seen, and a secret from which every
    random choice is drawn, so that a repeated query gets the same answer.
    """

    def __init__(self, bundle: Bundle, *, ledger: Ledger | None = None, secret: bytes | None = None) -> None:
        self.bundle = bundle
        self.ledger: Ledger = MemoryLedger() if ledger is None else ledger
        if not callable(getattr(self.ledger, "judge_rows", None)):
            raise OptionError(f"expected a ledger such as SqliteLedger(path), got {type(ledger).__name__}")
        self._secret = new_secret() if secret is None else check_secret(secret)
        linear, centres = bundle.split.linear, bundle.geometry.feature_centres
        with torch.inference_mode():
            self._centre_logits = linear(centres.to(linear.weight.dtype)).float() if linear else None
            self._centre_squares = torch.linalg.vecdot(centres, centres)
        self._watch = Watch(bundle, self._secret)
        self._id_bounds = id_bounds(bundle.split.model)

    def answer(self, x: Inputs, *, client: str, groups: Sequence[str] = ()) -> Reply:
        """Answer one batch (n, *input) of one client, rows in arrival order: (n, K) probabilities and verdicts.

        `groups` are those the client belongs to, for example "tenant:7"; the sentinel's settings say which kinds there
        are. Whatever is wrong with the batch is said before the ledger changes; the ledger is written before the
        answer. A policy that refuses raises `RefusedError`, whose `reply` holds the rows that were not refused.
        """
        check_client(client)
        pooled = self._watch.groups(groups)
        seen = self.measure(x)
        return self.respond(seen, self.judge(seen, client, pooled), client)

    def judge(self, seen: Measured, client: str, pooled: Mapping[str, Group] | None = None) -> Judgement:
        """What the ledger says of one client's measured batch; from now on the client has seen it."""
        return self.judge_rows(seen, (client,), None, [pooled] if pooled else None)

    def judge_rows(
        self,
        seen: Measured,
        clients: tuple[str, ...],
        owner: Sequence[int] | None,
        groups: Sequence[Mapping[str, Group]] | None = None,
    ) -> Judgement:
        """The same for rows of several clients: `owner` (n,) indexes `clients`, `groups` are those of each client."""
        limits = self.bundle.limits
        rows = make_rows(clients, owner, seen.labels, seen.points, limits, groups=groups, bets=seen.bets)
        return self.ledger.judge_rows(rows)

    def groups(self, names: Sequence[str]) -> Mapping[str, Group]:
        """The groups of these names with their limits, if the operator has named their kinds."""
        return self._watch.groups(names)

    def respond(self, seen: Measured, judgement: Judgement, client: str) -> Reply:
        """The answers that the policy has for such a judgement of one client's batch."""
        if judgement.failed.any():
            raise LedgerError(
                f"the ledger could not record {int(judgement.failed.sum())} of {len(seen.honest)} queries"
            )
        reply = self.reply(seen, judgement, [client] * len(seen.honest))
        if reply.refused.any():
            raise RefusedError(_why_refused(client, judgement, reply.refused), reply)
        return reply

    def reply(self, seen: Measured, judgement: Judgement, clients: Sequence[str], *, uniform: bool = False) -> Reply:
        """The same for rows of several clients, one name a row (n,); refused rows are only marked.

        `uniform` computes every kind of answer that the policy knows for every row, so that the time it takes says
        nothing about the verdicts.
        """
        with torch.inference_mode():
            answers, refused = seen.honest, np.zeros(len(seen.honest), np.bool_)
            actions = self.policy.actions(judgement)
            if not self.bundle.observe and (uniform or actions.any()):  # HONEST is 0
                refused = actions == Action.REFUSE
                answers = self._act_all(actions, clients, seen) if uniform else self._act(actions, clients, seen)
        # A tensor made in inference mode may not enter autograd, and clients train students on answers.
        return Reply(answers.clone(), judgement.verdicts, judgement.alarmed, refused)

    def measure(self, x: Inputs, *, said: Tensor | None = None) -> Measured:
        """One checked batch through model and map: all that answering needs but the client's past. Changes nothing.

        `said` (n, K) are probabilities to take for the model's own: what if it had said that?
        """
        bundle = self.bundle
        x = inputs.check(x, bundle.probe.x, bundle.input_range)
        inputs.check_ids(x, *self._id_bounds)
        x = inputs.to(x, bundle.probe.logits.device)
        with torch.inference_mode():
            features, logits = self._run(x)
            if not inputs.is_finite(logits):
                raise NotFiniteError("the model's logits are NaN or infinite for this input")
            if said is not None:
                logits = said.to(logits).clamp(min=torch.finfo(logits.dtype).tiny).log()
            honest, labels = logits.softmax(1), logits.argmax(1)
            points = bundle.geometry.relative(bundle.mapping(features), labels)
            if not inputs.is_finite(points):
                raise NotFiniteError("the model's features are too large for this input")
            listed = labels.cpu().numpy()
            bets = self._watch.bets(x, listed.tolist(), features, logits, honest, points)
            return Measured(x, features, logits, honest, listed, points.cpu().numpy(), bets)

    def _run(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Features and logits in float32; what the network cannot digest is the client's mistake, not a crash."""
        try:
            features, logits = self.bundle.split(x)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise ModelError(f"the model cannot run on this input: {' '.join(str(error).split())[:200]}") from error
        return features.float(), logits.float()

    def _act(self, actions: NDArray[np.int8], clients: Sequence[str], seen: Measured) -> Tensor:
        """Replace the answers that the policy does not leave honest."""
        answers = seen.honest
        for action in map(Action, sorted(set(actions.tolist()) - {Action.HONEST})):
            chosen = np.flatnonzero(actions == action)
            if len(chosen) == len(actions):
                return self._perturb(action, clients, seen)
            told = self._perturb(action, [clients[row] for row in chosen.tolist()], seen.take(chosen))
            answers = answers.index_copy(0, torch.from_numpy(chosen).to(answers.device), told)
        return answers

    def _act_all(self, actions: NDArray[np.int8], clients: Sequence[str], seen: Measured) -> Tensor:
        """The same answers, with the same work whatever the actions."""
        answers = seen.honest
        chosen = torch.from_numpy(actions).to(answers.device)[:, None]
        for action in self.policy.possible:
            told = self._perturb(action, clients, seen)
            answers = torch.where(chosen == int(action), told, answers)
        return answers

    def _perturb(self, action: Action, clients: Sequence[str], seen: Measured) -> Tensor:
        honest = seen.honest
        if action is Action.MOVE:
            return self._move(seen.features, seen.logits)
        if action is Action.DECOY and seen.bets is not None:  # which only the sentinel knows, and it bets
            return self._watch.decoys(honest, seen.labels.tolist(), seen.bets.sketches)
        if action is Action.LABEL:
            return torch.nn.functional.one_hot(seen.logits.argmax(1), honest.shape[1]).to(honest)
        if action is Action.REFUSE:
            return torch.full_like(honest, 1 / honest.shape[1])
        # The sentinel reverses the answers of thieves: a kept label would be just what they want.
        keep_label = self.bundle.keep_label and self.bundle.policy != "sentinel"
        return reverse_gradient(honest, self._pirate(clients, seen.x, seen.features), keep_label=keep_label)

    def _move(self, features: Tensor, logits: Tensor) -> Tensor:
        centres, max_steps = self.bundle.geometry.feature_centres, self.policy.max_steps
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

    def _pirate(self, clients: Sequence[str], x: Inputs, features: Tensor) -> Tensor:
        """What a simulated pirate would answer: the mean of `draw` shadows, drawn by the keyed hash of the query."""
        bundle = self.bundle
        probabilities = bundle.shadows.probabilities(features, x)
        digests = query_digests(self._secret, [f"{bundle.identity}\0{client}" for client in clients], x)
        drawn = draw(digests, len(bundle.shadows), bundle.draw)
        return draw_mean(probabilities, drawn.to(probabilities.device))

    def as_client(self, name: str, *, groups: Sequence[str] = ()) -> Oracle:
        """The guard as one client sees it: Tensor (n, *input) -> Tensor (n, K), and nothing else."""
        check_client(name)
        self._watch.groups(groups)
        return lambda x: self.answer(x, client=name, groups=groups).probabilities

    def with_options(self, **changes: Any) -> Guard:
        """The same guard, ledger and secret under other options: policy, observe, limits, keep_label, draw,
        input_range, sentinel;
        alpha, on_alarm, on_spent and groups are short for those of the sentinel."""
        return self.with_bundle(self.bundle.with_options(**changes))

    def with_bundle(self, bundle: Bundle) -> Guard:
        """The same ledger and secret around another bundle."""
        return Guard(bundle, ledger=self.ledger, secret=self._secret)

    def fresh(self, **changes: Any) -> Guard:
        """The same with an empty memory ledger: a guard that has seen nobody yet."""
        return Guard(self.bundle.with_options(**changes), secret=self._secret)

    @cached_property
    def policy(self) -> Policy:
        """The policy in force: the bundle's, with what its owner chose for the sentinel."""
        return find_policy(self.bundle.policy, self.bundle.sentinel)

    @property
    def report(self) -> dict[str, Any]:
        """What fitting found: the map's health, spreads, budgets, shadows, warnings, timings."""
        return self.bundle.report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle folder; the secret goes to `<path>.secret` beside it (mode 0600), never inside."""
        save_bundle(self.bundle, path)
        write_secret(secret_path(path), self._secret)


def _why_refused(client: str, judgement: Judgement, refused: NDArray[np.bool_]) -> str:
    count = int(refused.sum())
    why = "accused of extraction" if (judgement.alarmed & refused).any() else "its budget of honest answers is spent"
    return f"client '{client}' gets no answer to {count} of {len(refused)} queries: {why}"


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
    `<path>.secret`. `changes` override stored options: policy, observe, limits, keep_label, draw, sentinel, and alpha,
    on_alarm, on_spent, groups of the sentinel.
    """
    bundle = load_bundle(path, model, device=device, **changes)
    if secret is None:
        secret = secret_for(path)
    elif not isinstance(secret, bytes):
        secret = read_secret(Path(secret))
    return Guard(bundle, ledger=ledger, secret=secret)
