"""Refusals are logged, but no faster than one line per second."""

from __future__ import annotations

import asyncio

from queen.serve.limits import refusal_log
from queen.serve.limits.refusal_log import RefusalLog


def test_the_first_is_logged_at_once_and_the_others_together(monkeypatch):
    lines: list[dict[str, object]] = []
    monkeypatch.setattr(refusal_log, "log", lambda event, **fields: lines.append({"event": event, **fields}))
    monkeypatch.setattr(refusal_log, "EVERY", 0.01)

    async def main() -> None:
        log = RefusalLog("refused")
        log.note("full", "a")
        assert len(lines) == 1
        for i in range(100):
            log.note("full" if i % 2 else "late", "b" if i else "a", "c")
        assert len(lines) == 1
        while len(lines) == 1:
            await asyncio.sleep(0.001)
        while log._timer is not None:  # nothing more happens
            await asyncio.sleep(0.001)
        assert len(lines) == 2

    asyncio.run(main())
    assert [line["count"] for line in lines] == [1, 100]
    assert (lines[1]["reasons"], lines[1]["most_from"]) == ({"full": 50, "late": 50}, "b")
    assert [line.get("largest") for line in lines] == [None, "c"]
