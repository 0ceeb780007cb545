"""A server that ends at once: what it has accepted is recorded, and nobody hears of it."""

from __future__ import annotations

import os
import time

from queen.cli import main
from queen.serve.service import Service


def drain(self: Service) -> None:
    """Go, without a word to those who wait."""
    time.sleep(0.3)  # its threads still work
    os._exit(0)


if __name__ == "__main__":
    Service.drain = drain  # type: ignore[method-assign]
    main()
