"""Memory of large requests is given back to the system, when it was much."""

from __future__ import annotations

import asyncio

from queen.serve.limits import trim
from queen.serve.limits.memory import MemoryAccount
from queen.serve.limits.trim import Trimmer
from queen.serve.types import LARGE_BYTES


def test_the_heap_is_trimmed_once_for_every_so_many_bytes(monkeypatch):
    monkeypatch.setattr(trim, "EVERY", 0.001)
    account, calls = MemoryAccount(1 << 30, 1 << 30), list[int]()
    trimmer = Trimmer(lambda: account.given_back, 3 * LARGE_BYTES)
    trimmer._trim = calls.append  # type: ignore[assignment]

    async def main() -> None:
        task = asyncio.create_task(trimmer.watch())
        for _ in range(1000):
            account.reserve("alice", LARGE_BYTES - 1).close()  # small ones are used again by the next
        assert account.given_back == 0
        account.reserve("alice", 2 * LARGE_BYTES).close()
        await asyncio.sleep(0.02)
        assert calls == []
        account.reserve("alice", LARGE_BYTES).close()
        while not calls:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert calls == [0]
        task.cancel()

    asyncio.run(main())


def test_where_the_c_library_cannot_nothing_happens():
    looks: list[int] = []
    trimmer = Trimmer(lambda: looks.append(1) or len(looks), 1)
    trimmer._trim = None
    asyncio.run(asyncio.wait_for(trimmer.watch(), 60))  # returns at once
    assert looks == []
