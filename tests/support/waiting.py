"""Waiting for what must happen sooner or later. No test asks how long it took: the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 300.0  # seconds
Value = TypeVar("Value")


def wait_for(condition: Callable[[], Value]) -> Value:
    """What the condition returns once that is true; an AssertionError if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value
