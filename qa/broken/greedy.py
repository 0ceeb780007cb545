"""A server without limits: it reads and inflates whatever comes, and parses any number of values."""

from __future__ import annotations

import gzip
from typing import Any

from queen.cli import main
from queen.serve import app
from queen.serve.limits.bodies import read_body
from queen.serve.limits.memory import MemoryAccount, Reservation


async def read_all(headers: dict[bytes, bytes], receive: Any, limit: int, reservation: Reservation) -> bytes:
    """The body, however large."""
    return await read_body(headers, receive, 1 << 30, MemoryAccount(1 << 50, 1 << 50).reserve("anybody"))


if __name__ == "__main__":
    app.read_body = read_all
    app.inflate = lambda body, encoding, limit: gzip.decompress(body)
    main()
