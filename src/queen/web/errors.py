"""What the guard raises, as an application says it: a status, one line of text, and when to come back.

Bodies are those of the server: `{"error": "...", "rows": [...]}`, the rows only where an answer was refused to some.
"""

from __future__ import annotations

import json
import logging

from starlette.exceptions import HTTPException

from queen.errors import (
    DtypeError,
    EmptyBatchError,
    LedgerError,
    ModelError,
    NotFiniteError,
    QueenError,
    RangeError,
    RefusedError,
    ShapeError,
)
from queen.refusal import ACCUSED_MESSAGE, UNSAID_MESSAGE, Refusal, tell

LOGGER = logging.getLogger("queen.web")
NO_CLIENT = "no answer: this request does not say whose it is"
NOT_RECORDED = "no answer: this request cannot be recorded now; try again"
NOT_READY = "no answer: the guard of this model does not work now; ask the operator"
BAD_INPUT = (DtypeError, EmptyBatchError, ModelError, NotFiniteError, RangeError, ShapeError)


class NoAnswerError(QueenError):
    """A request that gets no answer: an HTTP status, one line of text, when to ask again, and the refused rows."""

    def __init__(
        self, status: int, message: str, *, retry_after: int | None = None, rows: tuple[int, ...] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after, self.rows = status, message, retry_after, rows

    @property
    def body(self) -> bytes:
        """The response's body, JSON in ASCII."""
        content: dict[str, object] = {"error": self.message.encode("utf-8", "replace").decode()}
        return json.dumps(content | ({"rows": self.rows} if self.rows else {})).encode()

    @property
    def response_headers(self) -> dict[str, str]:
        """The response's headers."""
        after = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {"content-type": "application/json", **after}


class HttpNoAnswerError(NoAnswerError, HTTPException):
    """The same where FastAPI is to answer, which knows what to do with its own exceptions."""

    def __init__(self, error: NoAnswerError) -> None:
        NoAnswerError.__init__(self, error.status, error.message, retry_after=error.retry_after, rows=error.rows)
        self.status_code, self.detail = error.status, error.message
        self.headers = {name: text for name, text in error.response_headers.items() if name == "retry-after"}


def no_answer(error: QueenError) -> NoAnswerError:
    """What the client is told of an error of the guard. What only operators can mend goes into the log instead."""
    if isinstance(error, NoAnswerError):
        return error
    if isinstance(error, RefusedError):
        return _refused(error)
    if isinstance(error, BAD_INPUT):
        return NoAnswerError(422, str(error))
    LOGGER.error("no answer: %s", error)
    if isinstance(error, LedgerError):
        return NoAnswerError(503, NOT_RECORDED, retry_after=1)
    return NoAnswerError(503, NOT_READY, retry_after=1)


def _refused(error: RefusedError) -> NoAnswerError:
    """403 for who is told that it stands accused, 429 for who has spent a budget, with the time until it renews."""
    why = error.why or Refusal(None, UNSAID_MESSAGE)
    message, rows = tell(why, error.reply.refused.tolist())
    status = 403 if why.denial is None and why.accusation == ACCUSED_MESSAGE else 429
    return NoAnswerError(status, message, retry_after=why.wait, rows=rows)
