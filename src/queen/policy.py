"""Which answer each verdict gets: literal tables, looked up by the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from queen.ledger import Judgement
from queen.types import PolicyError


class Action(IntEnum):
    """What the guard does to an answer."""

    HONEST = 0
    MOVE = 1  # feature perturbation
    REVERSE = 2  # gradient reverse


HONEST, MOVE, REVERSE = Action


@dataclass(frozen=True)
class Policy:
    """A name, a table letter -> (action while the class is open, action once it is spent), and the walk's limit."""

    name: str
    table: Mapping[str, tuple[Action, Action]]
    max_steps: int | None = None

    def actions(self, judgement: Judgement) -> NDArray[np.int8]:
        """The action for every row (n,), as numbers of `Action`."""
        letters = np.frombuffer(judgement.letters.encode(), np.uint8)
        return self._lookup[2 * letters + judgement.spent]

    @cached_property
    def _lookup(self) -> NDArray[np.int8]:
        """The table by 2 * (code of the letter) + spent, which must stay below 256."""
        flat = np.zeros(256, np.int8)
        for letter, (while_open, once_spent) in self.table.items():
            flat[2 * ord(letter)], flat[2 * ord(letter) + 1] = while_open, once_spent
        return flat


POLICIES: Mapping[str, Policy] = {
    # The paper's text: conditions C and D are honest, whatever was seen before.
    "paper": Policy("paper", {
        "A": (MOVE, MOVE),
        "B": (REVERSE, REVERSE),
        "C": (HONEST, HONEST),
        "D": (HONEST, HONEST),
    }),
    # Once a class is spent nothing of it is honest any more, so circling around old records gains nothing.
    "strict": Policy("strict", {
        "A": (MOVE, REVERSE),
        "B": (REVERSE, REVERSE),
        "C": (HONEST, HONEST),
        "D": (HONEST, REVERSE),
    }),
    # What the authors' released code does: no answer is honest, and the walk is short.
    "artifact": Policy("artifact", {
        "A": (MOVE, MOVE),
        "B": (REVERSE, REVERSE),
        "C": (MOVE, MOVE),
        "D": (MOVE, MOVE),
    }, max_steps=20),
}  # fmt: skip


def find_policy(name: str) -> Policy:
    """A policy by name."""
    if not isinstance(name, str) or name not in POLICIES:
        raise PolicyError(f"no policy '{name}'; known: {', '.join(POLICIES)}")
    return POLICIES[name]
