"""Work that is not urgent makes room for work that is."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

SECONDS = 5e-5
NICENESS = 10  # of threads that parse and write large requests


def pause() -> None:
    """Let all other threads run that can, in the middle of a large request: others wait for fractions of milliseconds.

    Python by itself changes threads too, but only after one has asked for a while, and then to any other one.
    """
    time.sleep(SECONDS)


def lower_priority() -> None:
    """Let the calling thread run mostly when no other one wants to, where the system can do that for a thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
