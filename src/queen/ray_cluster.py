"""A Ray cluster for a while: one that runs somewhere, or one of our own on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queen.errors import OptionError

LOCAL = "local"  # the address that means: start a cluster on this machine
PATIENCE = 5  # seconds until a cluster must have taken the call


def find_ray() -> Any:
    """The package, which is an extra."""
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise OptionError("--ray needs ray: pip install 'queen[ray]'") from error
    return ray


@contextmanager
def connected(ray: Any, address: str, **more: Any) -> Iterator[None]:
    """Use the cluster that this process is part of, else connect to the address, and leave it as it was.

    `more` goes to `ray.init`.
    """
    if ray.is_initialized():
        yield
        return
    options = {"include_dashboard": False} if address == LOCAL else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what we start reports to nobody, unless it is told to
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options, **more)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # ConnectionError is an OSError
        why = " ".join(str(error).split())[:200]
        raise OptionError(
            f"no Ray cluster at '{address}': {why}; expected host:port, 'auto' beside a running node, or 'local'"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def worker_device(device: str) -> str:
    """The device as a worker knows it: "cuda:1" is "cuda", because a worker sees only the GPU that it was given."""
    return device.partition(":")[0]


def _knock(address: str) -> None:
    """Ray itself would try for minutes to reach a host where nobody listens."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
