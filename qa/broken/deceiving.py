"""A server that deceives whoever shares a network prefix, or a group, with the accused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from queen.cli import main
from queen.guard import Guard
from queen.ledger import Judgement
from queen.policy import Policy
from queen.serve import service

strict = Policy.actions


def actions(self: Policy, judgement: Judgement) -> NDArray[np.int8]:
    """What the accused get, for members of an accused group as well."""
    return strict(self, replace(judgement, cut_off=np.zeros(len(judgement.letters), np.bool_)))


def leave_alone(guard: Guard, *, anonymous: bool) -> tuple[Guard, list[str]]:
    """The guard as the operator chose it: decoys for a whole network prefix."""
    return guard, []


if __name__ == "__main__":
    Policy.actions = actions  # type: ignore[method-assign]
    service.refuse_neighbours = leave_alone
    main()
