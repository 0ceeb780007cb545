"""What a client is told whose rows are refused: which budget is spent, or that it stands accused; and what to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from queen.ledger import Judgement
from queen.ledger.words import Denial

ACCUSED_MESSAGE = (
    "no answer: this client, or a group that it belongs to, stands accused of extraction; ask the operator"
)
UNSAID_MESSAGE = "no answer: this client gets none to this request; ask the operator"
SEND_AGAIN = (
    "The other rows are on record, and sending them again costs nothing; with the parameter partial they are answered"
)
NOT_RENEWED = "it does not renew by itself: ask the operator for more"
PARTLY_RENEWED = "not all of it renews by itself: ask the operator for more"
MAX_LISTED = 100  # refused rows that are listed


@dataclass(frozen=True)
class Refusal:
    """Why rows of a request are refused: whose budget is spent, or (None) the `accusation`, in words.

    `renews` is when all budgets will have renewed that refused rows, None if not all do; `at` is the ledger's time of
    the last of them. Rows of the accused have no say in it: with them, an alarm that is not told could be read from it.
    """

    denial: Denial | None
    accusation: str = ""
    renews: int | None = None
    at: int = 0

    def followed_by(self, other: Refusal) -> Refusal:
        """The refusal of a request whose next part is refused like the other."""
        if self.denial is None or other.denial is None:
            return self
        return replace(self, renews=_latest(self.renews, other.renews), at=max(self.at, other.at))

    @property
    def wait(self) -> int | None:
        """After how many seconds it may be worth while to ask again; None if that would not help."""
        return None if self.renews is None else max(1, self.renews - self.at)

    @property
    def message(self) -> str:
        """The sentence for the client. Of a group no numbers are told: they are about others too."""
        denial = self.denial
        if denial is None:
            return self.accusation
        if denial.group:
            whose = f"the budget that this client shares with its group '{denial.name}' is spent"
        else:
            class_spent = ", but a class is spent" if denial.used < denial.limit else ""
            used = f"{denial.used:,} of {denial.limit:,} extra answers are used{class_spent}"
            whose = f"the budget of this client is spent ({used})"
        return f"no answer: {whose}; {self._outlook}"

    @property
    def _outlook(self) -> str:
        if self.renews is not None:
            return f"it renews at {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(self.renews))}"
        return PARTLY_RENEWED if self.at else NOT_RENEWED


def explain(judgement: Judgement, first: int, refused: Sequence[bool], *, openly: bool) -> Refusal:
    """Why rows of a request are refused, whose first is the batch's `first`: a budget is spent, or it stands accused.

    Nothing in it depends on what a refused row holds: which class is spent would be its label. Unless accused clients
    are refused `openly`, nothing is said of accusations either.
    """
    listed = (judgement.denials.get(first + row) for row, is_refused in enumerate(refused) if is_refused)
    refusals = [Refusal(denial, renews=denial.renews, at=denial.at) for denial in listed if denial is not None]
    if not refusals:
        return Refusal(None, ACCUSED_MESSAGE if openly else UNSAID_MESSAGE)
    whole = refusals[0]
    for refusal in refusals[1:]:
        whole = whole.followed_by(refusal)
    return whole


def tell(why: Refusal, refused: Sequence[bool]) -> tuple[str, tuple[int, ...]]:
    """What to say of a request of whose rows some are refused, and the numbers of those rows, the first of them."""
    rows = [row for row, is_refused in enumerate(refused) if is_refused]
    message = why.message
    if why.denial is not None and len(rows) < len(refused):
        message += f". {SEND_AGAIN}"
    return message, tuple(rows[:MAX_LISTED])


def _latest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
