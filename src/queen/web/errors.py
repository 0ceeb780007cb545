"""What the guard raises, as an application says it: a status, one line of text, and when to come back.

Bodies are those of the server: `{"error": "...", "rows": [...]}`, the rows only where an answer was refused to some.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

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
    tell_client,
)
from queen.ledger.refusal import ACCUSED_MESSAGE, UNSAID_MESSAGE, Refusal, tell

LOGGER = logging.getLogger("queen.web")
POLICY_VIOLATION = 1008  # of websockets
MOST_BYTES = 120  # of the reason why a websocket is closed; the protocol allows 123
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

    @property
    def closing(self) -> tuple[int, str]:
        """Code and reason with which a websocket is closed."""
        return POLICY_VIOLATION, self.message.encode("ascii", "replace")[:MOST_BYTES].decode()


class HttpNoAnswerError(NoAnswerError, HTTPException):
    """The same where FastAPI is to answer, which knows what to do with its own exceptions."""

    def __init__(self, error: NoAnswerError) -> None:
        NoAnswerError.__init__(self, error.status, error.message, retry_after=error.retry_after, rows=error.rows)
        self.status_code, self.detail = error.status, error.message
        self.headers = {name: text for name, text in error.response_headers.items() if name == "retry-after"}


class SocketNoAnswerError(NoAnswerError, WebSocketException):
    """The same for a websocket that was accepted: Starlette closes it."""

    def __init__(self, error: NoAnswerError) -> None:
        NoAnswerError.__init__(self, error.status, error.message, retry_after=error.retry_after, rows=error.rows)
        self.code, self.reason = error.closing


async def respond(connection: HTTPConnection, error: NoAnswerError) -> Response | None:
    """The response to a request without an answer; a websocket gets it, or is closed if it was accepted."""
    response = Response(error.body, error.status, error.response_headers)
    if not isinstance(connection, WebSocket):
        return response
    if connection.application_state is WebSocketState.CONNECTED:
        await connection.close(*error.closing)
    elif connection.application_state is WebSocketState.CONNECTING:
        await connection.send_denial_response(response)
    return None


EXCEPTION_HANDLERS: dict[Any, Any] = {NoAnswerError: respond}
"""For applications that are mounted below the one with the middleware: they turn errors into responses themselves."""


def no_answer(error: QueenError) -> NoAnswerError:
    """What the client is told of an error of the guard. What only operators can mend goes into the log instead."""
    if isinstance(error, NoAnswerError):
        return error
    if isinstance(error, RefusedError):
        return _refused(error)
    if isinstance(error, BAD_INPUT):
        return NoAnswerError(422, tell_client(error))
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
