"""Which answer each verdict gets, as literal tables that the guard looks up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from queen.errors import PolicyError
from queen.ledger import Judgement
from queen.options import Sentinel


class Action(IntEnum):
    """What the guard does to an answer."""

    HONEST = 0
    MOVE = 1  # feature perturbation
    REVERSE = 2  # gradient reverse
    DECOY = 3  # numbers of calibration images in a secret order
    LABEL = 4  # the honest label and nothing else
    REFUSE = 5  # no answer


HONEST, MOVE, REVERSE, DECOY, LABEL, REFUSE = Action


@dataclass(frozen=True)
class Policy:
    """A name, a table letter -> (action while there is budget, action once it is spent), what accused clients get
    (None: the same as others), and the walk's limit."""

    name: str
    table: Mapping[str, tuple[Action, Action]]
    alarmed: Action | None = None
    max_steps: int | None = None

    def actions(self, judgement: Judgement) -> NDArray[np.int8]:
        """The action for every row (n,), as numbers of `Action`."""
        letters = np.frombuffer(judgement.letters.encode(), np.uint8)
        actions = self._lookup[2 * letters + judgement.spent]
        if self.alarmed is not None and judgement.alarmed.any():
            actions[judgement.alarmed] = self.alarmed
            actions[judgement.alarmed & judgement.cut_off] = REFUSE
            actions[judgement.alarmed & judgement.repeated] = HONEST
        if judgement.trusted.any():
            actions[judgement.trusted] = HONEST
        return actions

    @cached_property
    def possible(self) -> tuple[Action, ...]:
        """Every action but HONEST that some row may get."""
        listed = {action for pair in self.table.values() for action in pair}
        if self.alarmed is not None:
            listed |= {self.alarmed, REFUSE}  # some of the accused are cut off
        return tuple(sorted(listed - {HONEST}))

    @cached_property
    def _lookup(self) -> NDArray[np.int8]:
        """The table by 2 * (code of the letter) + spent, which must stay below 256."""
        flat = np.zeros(256, np.int8)
        for letter, (while_open, once_spent) in self.table.items():
            flat[2 * ord(letter)], flat[2 * ord(letter) + 1] = while_open, once_spent
        return flat


POLICIES: Mapping[str, Policy] = {
    # The paper's text: conditions C and D are honest, whatever came before. (C is spent only if a group's is.)
    "paper": Policy("paper", {
        "A": (MOVE, MOVE),
        "B": (REVERSE, REVERSE),
        "C": (HONEST, REVERSE),
        "D": (HONEST, HONEST),
    }),
    # Once a class is spent nothing of it is honest any more, so circling around old records gains nothing.
    "strict": Policy("strict", {
        "A": (MOVE, REVERSE),
        "B": (REVERSE, REVERSE),
        "C": (HONEST, REVERSE),
        "D": (HONEST, REVERSE),
    }),
    # Ours: the truth for everybody with budget left, nothing for proven extractors. `find_policy` puts the operator's
    # choices in the place of REFUSE: on_spent in the table, on_alarm for the accused.
    "sentinel": Policy("sentinel", {
        "A": (HONEST, REFUSE),
        "B": (REFUSE, REFUSE),
        "C": (HONEST, REFUSE),
        "D": (HONEST, REFUSE),
    }, alarmed=REFUSE),
    # What the authors' released code does: no answer is honest, and the walk is short.
    "artifact": Policy("artifact", {
        "A": (MOVE, MOVE),
        "B": (REVERSE, REVERSE),
        "C": (MOVE, MOVE),
        "D": (MOVE, MOVE),
    }, max_steps=20),
}  # fmt: skip


CHOICES: Mapping[str, Action] = {"refuse": REFUSE, "decoy": DECOY, "reverse": REVERSE, "label-only": LABEL}


def find_policy(name: str, settings: Sentinel | None = None) -> Policy:
    """A policy by name; that of the sentinel with the answers its `settings` choose ("observe" changes none)."""
    if not isinstance(name, str) or name not in POLICIES:
        raise PolicyError(f"no policy '{name}'; known: {', '.join(POLICIES)}")
    policy = POLICIES[name]
    if settings is None or policy.alarmed is None:
        return policy
    # Members of a group share its budget: who spent it is not who would get the wrong answers.
    spent = REFUSE if settings.groups else CHOICES[settings.on_spent]
    table = {
        letter: (spent if first is REFUSE else first, spent if then is REFUSE else then)
        for letter, (first, then) in policy.table.items()
    }
    return replace(policy, table=table, alarmed=CHOICES.get(settings.on_alarm))
