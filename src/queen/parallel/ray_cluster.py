"""Connect to a Ray cluster for a while: to one that runs somewhere, or to a new one on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queen.errors import OptionError
from queen.extras import install

LOCAL = "local"  # the address that means: start a cluster on this machine
PATIENCE = 5  # seconds in which a cluster must accept the connection


def find_ray() -> Any:
    """Import ray, which is an optional dependency."""
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(f"--ray needs ray: {install('ray')}") from error
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
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports unless the user turns them on
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options, **more)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # ConnectionError is an OSError
        reason = " ".join(str(error).split())[:200]
        raise OptionError(
            f"no Ray cluster at '{address}': {reason}; expected host:port, 'auto' beside a running node, or 'local'"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def worker_device(device: str) -> str:
    """The device as a worker knows it: "cuda:1" is "cuda", because a worker sees only the GPU that it was given."""
    return device.partition(":")[0]


def _knock(address: str) -> None:
    """Try the address first: Ray itself would try for minutes to reach a host where nobody listens."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
