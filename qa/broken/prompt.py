"""A server whose answers leave at the first tick after they are ready, however long ago the request came."""

from __future__ import annotations

from queen.cli import main
from queen.serve.release.hold import Hold


async def wait(self: Hold, arrived: float, rows: int) -> None:
    """Wait for the next tick."""
    await self._clock.wait(0.0)


if __name__ == "__main__":
    Hold.wait = wait  # type: ignore[method-assign]
    main()
