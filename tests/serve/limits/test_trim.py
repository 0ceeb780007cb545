"""Memory of large requests is given back to the system, when it was much."""

from __future__ import annotations

import asyncio

from queen.serve.limits import trim
from queen.serve.limits.intake import Intake
from queen.serve.limits.trim import Trimmer
from queen.serve.types import LARGE


def test_the_heap_is_trimmed_once_for_every_so_many_bytes(monkeypatch):
    monkeypatch.setattr(trim, "EVERY", 0.001)
    intake, calls = Intake(1 << 30, 1 << 30), list[int]()
    trimmer = Trimmer(lambda: intake.given_back, 3 * LARGE)
    trimmer._trim = calls.append  # type: ignore[assignment]

    async def main() -> None:
        task = asyncio.create_task(trimmer.watch())
        for _ in range(1000):
            intake.reserve("alice", LARGE - 1).close()  # small ones are used again by the next
        assert intake.given_back == 0
        intake.reserve("alice", 2 * LARGE).close()
        await asyncio.sleep(0.02)
        assert calls == []
        intake.reserve("alice", LARGE).close()
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
