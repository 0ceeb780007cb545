"""The whole online pipeline: x -> u -> (y, z) -> judge -> act -> answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bundle.binding import Binding, bind, binding_of, is_open_to
from queen.bundle.bundle import Bundle
from queen.bundle.model import Model
from queen.bundle.store import load_bundle, save_bundle
from queen.core import inputs
from queen.core.split import id_bounds
from queen.errors import BindingError, LedgerError, ModelError, NotFiniteError, OptionError, RefusedError
from queen.ledger import Ledger, MemoryLedger
from queen.ledger.refusal import explain
from queen.ledger.rows import check_client, make_rows
from queen.ledger.words import Judgement
from queen.options import Group
from queen.perturber import MeasuredBatch, Perturber
from queen.policy import Action, Policy, find_policy
from queen.secret import (
    check_not_lost,
    check_secret,
    new_secret,
    read_secret,
    remember_secret,
    secret_for,
    secret_path,
    write_secret,
)
from queen.sentinel.runtime import SentinelRuntime
from queen.types import Arrays, Inputs, Oracle, Reply


class Guard:
    """Stands between a model and its clients and answers each of them.

    A guard is a fitted `Bundle`, a ledger that remembers what each client has seen, and a secret from which every
    random choice is drawn, so that a repeated query gets the same answer.
    """

    def __init__(self, bundle: Bundle, *, ledger: Ledger | None = None, secret: bytes | None = None) -> None:
        self.bundle = bundle
        self.ledger: Ledger = MemoryLedger() if ledger is None else ledger
        if not callable(getattr(self.ledger, "judge_rows", None)):
            raise OptionError(
                f"expected a ledger, got {type(ledger).__name__}: queen.ledger.open_ledger('clients.sqlite') opens one"
            )
        self._bound_ledger: Ledger | None = None  # the one that is known to be for this bundle
        self._secret = new_secret() if secret is None else check_secret(secret)
        self._sentinel = SentinelRuntime(bundle, self._secret)
        self._perturber = Perturber(bundle, self.policy, self._sentinel, self._secret)
        self._id_bounds = id_bounds(bundle.split.model)

    def __repr__(self) -> str:
        """What it guards, how, and where it remembers."""
        bundle = self.bundle
        observes = ", observes only" if bundle.observe else ""
        model = bundle.split.model
        kind = getattr(model, "library", type(model).__name__)
        return (
            f"<Guard of a {kind} with {bundle.geometry.classes} classes: policy {bundle.policy}{observes}, "
            f"{type(self.ledger).__name__}, bundle {bundle.identity[:12]}>"
        )

    @overload
    def answer(self, x: Inputs, *, client: str, groups: Sequence[str] = ()) -> Reply: ...

    @overload
    def answer(self, x: Arrays, *, client: str, groups: Sequence[str] = ()) -> Reply[NDArray[np.float32]]: ...

    def answer(self, x: Inputs | Arrays, *, client: str, groups: Sequence[str] = ()) -> Reply[Any]:
        """Answer one batch (n, *input) of one client, rows in arrival order: (n, K) probabilities and verdicts.

        Who asks with numpy arrays gets the probabilities as one.
        `groups` are those the client belongs to, for example "tenant:7"; the sentinel's settings say which kinds there
        are. Whatever is wrong with the batch is said before the ledger changes; the ledger is written before the
        answer. A policy that refuses raises `RefusedError`, whose `reply` holds the rows that were not refused.
        """
        check_client(client)
        group_limits = self.groups(groups)
        batch = self.measure(inputs.as_tensors(x))
        judgement = self.judge(batch, client, group_limits)
        try:
            reply = self.respond(batch, judgement, client)
        except RefusedError as refusal:
            if inputs.has_arrays(x):
                refusal.reply = _in_numpy(refusal.reply)
            raise
        return _in_numpy(reply) if inputs.has_arrays(x) else reply

    def measure(self, x: Inputs, *, said: Tensor | None = None, features: Tensor | None = None) -> MeasuredBatch:
        """One checked batch through model and map: all that answering needs but the client's past. Changes nothing.

        `said` (n, K) replaces the model's own probabilities, for callers who ask what the guard would make of others.
        `features` (n, D) are those of x, measured before: then only the model's head runs.
        """
        bundle = self.bundle
        x = inputs.to(self.check(x), bundle.probe.logits.device)
        with torch.inference_mode():
            if features is None:
                features, logits = self._run(x)
            else:
                logits = bundle.split.head_of(features)
            if not inputs.is_finite(logits):
                raise NotFiniteError("the model's logits are NaN or infinite for this input")
            if said is not None:
                logits = said.to(logits).clamp(min=torch.finfo(logits.dtype).tiny).log()
            honest, labels = logits.softmax(1), logits.argmax(1)
            points = bundle.geometry.relative(bundle.mapping(features), labels)
            if not inputs.is_finite(points):
                raise NotFiniteError("the model's features are too large for this input")
            predicted, places = labels.cpu().numpy(), points.cpu().numpy()
            bets = self._sentinel.bets(x, predicted, features, logits, honest, places)
            return MeasuredBatch(x, features, logits, honest, predicted, places, bets)

    def check(self, x: Inputs) -> Inputs:
        """The batch in the model's precision, or an error that says what is wrong with it."""
        x = inputs.check(x, self.bundle.probe.x, self.bundle.input_range, fixed=self._id_bounds is None)
        inputs.check_ids(x, self._id_bounds)
        return x

    def _run(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Features and logits in float32; an input the network cannot run on is the client's mistake, not a crash."""
        try:
            features, logits = self.bundle.split(x)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise ModelError(f"{ModelError.told}: {' '.join(str(error).split())[:200]}") from error
        return features.float(), logits.float()

    def judge(self, batch: MeasuredBatch, client: str, group_limits: Mapping[str, Group] | None = None) -> Judgement:
        """What the ledger says of one client's measured batch; from now on the client has seen it."""
        return self.judge_rows(batch, (client,), None, [group_limits] if group_limits else None)

    def judge_rows(
        self,
        batch: MeasuredBatch,
        clients: tuple[str, ...],
        owner: Sequence[int] | None,
        groups: Sequence[Mapping[str, Group]] | None = None,
    ) -> Judgement:
        """The same for rows of several clients: `owner` (n,) indexes `clients`, `groups` are those of each client."""
        if self._bound_ledger is not self.ledger:
            self.bind()
        limits = self.bundle.limits
        rows = make_rows(clients, owner, batch.labels, batch.points, limits, groups=groups, bets=batch.bets)
        return self.ledger.judge_rows(rows)

    def bind(self) -> bool:
        """Make sure that the ledger is for this bundle, or raise `BindingError`; whether it was bound only now.

        This happens by itself when the guard first uses the ledger. A server calls it when it starts, and then again
        and again: from when the ledger is taken over by another bundle, this one judges nobody any more.
        """
        try:
            is_new = bind(self.ledger, self.binding)
        except BindingError:
            self._bound_ledger = None
            raise
        self._bound_ledger = self.ledger
        return is_new

    @property
    def binding(self) -> Binding:
        """What the ledger must be for."""
        return binding_of(self.bundle)

    def respond(self, batch: MeasuredBatch, judgement: Judgement, client: str) -> Reply:
        """The answers that the policy gives to one client's judged batch; raises where it refuses one."""
        if judgement.failed.any():
            raise LedgerError(
                f"the ledger could not record {int(judgement.failed.sum())} of {len(batch.honest)} queries"
            )
        reply = self.reply(batch, judgement, [client] * len(batch.honest))
        if reply.refused.any():
            openly = self.policy.alarmed is Action.REFUSE
            why = explain(judgement, 0, reply.refused.tolist(), openly=openly)
            raise RefusedError(_refusal(client, judgement, reply.refused), reply, why)
        return reply

    def reply(
        self, batch: MeasuredBatch, judgement: Judgement, clients: Sequence[str], *, uniform: bool = False
    ) -> Reply:
        """The same for rows of several clients, one name per row (n,); refused rows are 1/K throughout and marked.

        `uniform` computes every kind of answer that the policy knows for every row, so that the time it takes says
        nothing about the verdicts.
        """
        with torch.inference_mode():
            answers, refused = batch.honest, np.zeros(len(batch.honest), np.bool_)
            honest = ~refused
            if not self.bundle.observe:
                actions = self.policy.actions(judgement)
                honest, refused = actions == Action.HONEST, actions == Action.REFUSE
                act = self._perturber.act_uniformly if uniform else self._perturber.act
                answers = act(actions, clients, batch)
        # A tensor made in inference mode may not enter autograd, and clients train copies on answers.
        return Reply(answers.clone(), judgement.verdicts, judgement.alarmed, refused, honest)

    def groups(self, names: Sequence[str]) -> Mapping[str, Group]:
        """The limits of every named group; an error unless the operator has set some for its kind."""
        return self._sentinel.group_limits(names)

    def as_client(self, name: str, *, groups: Sequence[str] = ()) -> Oracle:
        """The guard as one client sees it: (n, *input) -> (n, K), tensors or arrays, and nothing else."""
        check_client(name)
        self.groups(groups)
        return lambda x: self.answer(x, client=name, groups=groups).probabilities

    def with_options(self, **changes: Any) -> Guard:
        """The same guard, ledger and secret under other options.

        These are policy, observe, limits, keep_label, draw, input_range and sentinel; alpha, on_alarm, on_spent,
        after_alarm, digits and groups are short for those of the sentinel.
        """
        return self.with_bundle(self.bundle.with_options(**changes))

    def with_bundle(self, bundle: Bundle) -> Guard:
        """The same ledger and secret around another bundle."""
        return Guard(bundle, ledger=self.ledger, secret=self._secret)

    def fresh(self, **changes: Any) -> Guard:
        """The same guard with an empty ledger in memory, which knows no client yet."""
        return Guard(self.bundle.with_options(**changes), secret=self._secret)

    @cached_property
    def policy(self) -> Policy:
        """The policy in force: the bundle's, with what its owner chose for the sentinel."""
        return find_policy(self.bundle.policy, self.bundle.sentinel)

    @property
    def digits(self) -> int | None:
        """To how many decimals answers are rounded; None: not at all."""
        return self.bundle.digits

    @property
    def bar(self) -> float | None:
        """The wealth that accuses on this ledger, as operators see wealth; None unless the policy is the sentinel's.

        It rises with the calibrations that the ledger has met; to look at it is not to use one.
        """
        if self.bundle.policy != "sentinel":
            return None
        test = self.bundle.test
        return test.bar(self.ledger.number_of(test, claim=False)) / test.size

    @property
    def weakness(self) -> str | None:
        """Why the sentinel would catch nobody on this ledger, if so; to look at it is not to use a calibration."""
        if self.bundle.policy != "sentinel":
            return None
        return self.bundle.weakness(self.ledger.number_of(self.bundle.test, claim=False))

    @property
    def report(self) -> dict[str, Any]:
        """What fitting found: the map's health, spreads, budgets, shadows, warnings, timings."""
        return self.bundle.report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle folder; the secret goes to `<path>.secret` beside it (mode 0600), never inside."""
        save_bundle(self.bundle, path)
        write_secret(secret_path(path), self._secret)


def _in_numpy(reply: Reply) -> Reply[Any]:
    """The same with its probabilities as an array."""
    probabilities = reply.probabilities.cpu().numpy()
    return Reply(probabilities, reply.verdicts, reply.alarmed, reply.refused, reply.honest)


def _refusal(client: str, judgement: Judgement, refused: NDArray[np.bool_]) -> str:
    count = int(refused.sum())
    reason = "accused of extraction" if (judgement.alarmed & refused).any() else "its budget of honest answers is spent"
    return f"client '{client}' gets no answer to {count} of {len(refused)} queries: {reason}"


def load(
    path: str | os.PathLike[str],
    model: Model | None = None,
    *,
    ledger: Ledger | None = None,
    secret: bytes | str | os.PathLike[str] | None = None,
    new_secret: bool = False,
    device: torch.device | str = "cpu",
    **changes: Any,
) -> Guard:
    """A guard from a bundle folder.

    `model` is needed only where the bundle names no factory. `secret` is the secret itself or its file, by default
    `<path>.secret`, made on first use; a ledger that has been used with another one is refused, unless `new_secret`
    accepts that repeats of old queries are not recognised and decoys change. `changes` override stored options: policy,
    observe, limits, keep_label, draw, sentinel, and alpha, on_alarm, on_spent, after_alarm, digits, groups of the
    sentinel.
    """
    bundle = load_bundle(path, model, device=device, **changes)
    if secret is None:
        if ledger is not None and not new_secret:
            check_not_lost(path, ledger, bundle.identity)
        secret = secret_for(path)
    elif not isinstance(secret, bytes):
        secret = read_secret(Path(secret))
    guard = Guard(bundle, ledger=ledger, secret=secret)
    if ledger is not None and is_open_to(ledger, bundle.identity):  # else it is refused when first used
        remember_secret(ledger, bundle.identity, secret, replace=new_secret)
    return guard
