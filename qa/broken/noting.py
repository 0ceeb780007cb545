"""A server that notes every key that it refuses, in memory and in its log."""

from __future__ import annotations

import sys

from queen.cli import main
from queen.serve.access.auth import Authenticator
from queen.serve.types import Caller, ServeError

strict = Authenticator.caller
refused: dict[str, bytes] = {}


def caller(
    self: Authenticator, authorization: str | None, peer: str | None = None, forwarded: str | None = None
) -> Caller:
    """Who asks, and a note of those who may not."""
    try:
        return strict(self, authorization, peer, forwarded)
    except ServeError:
        refused[str(authorization)] = bytes(100_000)
        sys.stderr.write(f"refused {authorization}\n")
        raise


if __name__ == "__main__":
    Authenticator.caller = caller  # type: ignore[method-assign]
    main()
