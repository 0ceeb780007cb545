"""The model without protection, behind the same server, to measure what protection costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from queen.core import inputs
from queen.core.split import run_model
from queen.errors import NotFiniteError
from queen.guard import Guard
from queen.ledger import Judgement
from queen.options import Group
from queen.perturber import MeasuredBatch
from queen.policy import Action, Policy
from queen.types import Inputs, Reply, Verdict

NO_POLICY = Policy("none", {verdict.value: (Action.HONEST, Action.HONEST) for verdict in Verdict})


class Unprotected(Guard):
    """Answers everybody honestly, maps nothing and remembers nothing."""

    policy = NO_POLICY
    digits = None

    def measure(self, x: Inputs, *, said: Tensor | None = None, features: Tensor | None = None) -> MeasuredBatch:
        """The model's answers and nothing else."""
        bundle = self.bundle
        x = inputs.to(self.check(x), bundle.probe.logits.device)
        with torch.inference_mode():
            logits = run_model(bundle.split.model, x).float()
            if not inputs.is_finite(logits):
                raise NotFiniteError("the model's logits are NaN or infinite for this input")
            empty = np.empty(0, np.int64)
            return MeasuredBatch(
                x, logits, logits, logits.softmax(1), empty, empty.reshape(0, 2).astype(np.float32), None
            )

    def bind(self) -> bool:
        """Any ledger will do, since it is not asked."""
        return False

    def judge_rows(
        self,
        batch: MeasuredBatch,
        clients: tuple[str, ...],
        owner: Sequence[int] | None,
        groups: Sequence[Mapping[str, Group]] | None = None,
    ) -> Judgement:
        """Letter D for every row and nobody accused; the ledger is not asked."""
        none = np.zeros(len(batch.honest), np.bool_)
        return Judgement("D" * len(none), none, none, none)

    def reply(
        self, batch: MeasuredBatch, judgement: Judgement, clients: Sequence[str], *, uniform: bool = False
    ) -> Reply:
        """The model's own probabilities, unchanged."""
        none = np.zeros(len(batch.honest), np.bool_)
        return Reply(batch.honest, judgement.verdicts, judgement.alarmed, none, ~none)
