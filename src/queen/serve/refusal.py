"""The error of the protocol for a request with refused rows."""

from __future__ import annotations

from collections.abc import Sequence

from queen.refusal import Refusal, tell
from queen.serve.types import ServeError


def refuse(why: Refusal, refused: Sequence[bool]) -> ServeError:
    """The error for a request of whose rows some are refused; with Retry-After where all that is spent renews."""
    message, rows = tell(why, refused)
    return ServeError(429, message, retry_after=why.wait, rows=rows)
