"""A server that reserves what a head announces, and makes no room for those who have less."""

from __future__ import annotations

from typing import Any

from queen.cli import main
from queen.serve import app
from queen.serve.limits.bodies import memory_of_body, read_body
from queen.serve.limits.memory import MemoryAccount, Reservation


async def reserve_all(headers: dict[bytes, bytes], receive: Any, limit: int, reservation: Reservation) -> bytes:
    """Take the client's word for what will come."""
    reservation.resize(memory_of_body(int(headers.get(b"content-length", b"0"))))
    return await read_body(headers, receive, limit, reservation)


if __name__ == "__main__":
    MemoryAccount._make_room = lambda self, client, more: False  # type: ignore[method-assign]
    app.read_body = reserve_all
    main()
