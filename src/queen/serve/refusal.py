"""What a client is told whose rows are refused: which budget is spent, or that it stands accused; and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from queen.ledger import Judgement
from queen.ledger.words import Denial
from queen.serve.types import ServeError

ACCUSED_MESSAGE = (
    "no answer: this client, or a group that it belongs to, stands accused of extraction; ask the operator"
)
UNSAID_MESSAGE = "no answer: this client gets none to this request; ask the operator"
SEND_AGAIN = (
    "The other rows are on record, and sending them again costs nothing; with the parameter partial they are answered"
)
NOT_RENEWED = "it does not renew by itself: ask the operator for more"
MAX_LISTED = 100  # refused rows that are listed


def explain(judgement: Judgement, first: int, refused: Sequence[bool], *, openly: bool) -> str:
    """Why rows of a request are refused, whose first is the batch's `first`: a budget is spent, or it stands accused.

    Nothing in it depends on what a refused row holds: which class is spent would be its label. Unless accused clients
    are refused `openly`, nothing is said of accusations either.
    """
    denials = (judgement.denials.get(first + row) for row, is_refused in enumerate(refused) if is_refused)
    denial = next(filter(None, denials), None)
    if denial is not None:
        return _describe(denial)
    return ACCUSED_MESSAGE if openly else UNSAID_MESSAGE


def refuse(why: str, refused: Sequence[bool]) -> ServeError:
    """The error for a request of whose rows some are refused; without Retry-After, for no budget renews by itself."""
    rows = [row for row, is_refused in enumerate(refused) if is_refused]
    if why not in (ACCUSED_MESSAGE, UNSAID_MESSAGE) and len(rows) < len(refused):
        why += f". {SEND_AGAIN}"
    return ServeError(429, why, rows=tuple(rows[:MAX_LISTED]))


def _describe(denial: Denial) -> str:
    """Of a group no numbers are told: they are about others too."""
    if denial.group:
        return f"no answer: the budget that this client shares with its group '{denial.name}' is spent; {NOT_RENEWED}"
    used = f"{denial.used:,} of {denial.limit:,} extra answers are used"
    if denial.used < denial.limit:
        used += ", but a class is spent"
    return f"no answer: the budget of this client is spent ({used}); {NOT_RENEWED}"
