"""Theorem 3 on real traffic: how well the honest answers could be recovered from the returned ones."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from queen.core.certify import Recovery, recovery
from queen.errors import RefusedError
from queen.guard import Guard


def recovery_by_verdict(guard: Guard, x: Tensor) -> dict[str, Recovery]:
    """The estimate for the queries of each verdict, of a new client who sends x (n, *input) in this order.

    From a query that gets no answer nothing can be recovered, so it is left out.
    """
    honest = guard.fresh(observe=True).answer(x, client="recovery").probabilities.double().cpu().numpy()
    try:
        reply = guard.fresh(observe=False).answer(x, client="recovery")
    except RefusedError as refusal:
        reply = refusal.reply
    returned = reply.probabilities.double().cpu().numpy()
    letters = np.where(reply.refused, "", [verdict.value for verdict in reply.verdicts])
    return {k: recovery(honest[letters == k], returned[letters == k]) for k in "ABCD" if (letters == k).any()}
