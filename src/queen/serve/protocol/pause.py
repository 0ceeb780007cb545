"""Work that is not urgent makes room for work that is."""

from __future__ import annotations

import time

SECONDS = 5e-5


def pause() -> None:
    """Let all other threads run that can, in the middle of a large request: others wait for fractions of milliseconds.

    Python by itself changes threads too, but only after one has asked for a while, and then to any other one.
    """
    time.sleep(SECONDS)
