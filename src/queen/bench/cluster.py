"""Cells on a Ray cluster: one core each, and one GPU where a GPU is asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queen.types import OptionError

RETRIES = 3  # of a cell whose worker or node died
TRIES = 5  # to cancel what is left, a second each
PATIENCE = 5  # seconds until a cluster must have taken the call

Task = tuple[dict[str, Any], int]
Found = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """Where cells run: the cache's folder, the device, the folder of published image sets."""

    cache: str
    device: str = "cpu"
    root: str | None = None


def on_ray(work: Callable[[Task, Place], Found], tasks: Sequence[Task], place: Place, address: str) -> Iterator[Found]:
    """Results in the order in which they are ready; a cell that keeps losing its worker is an error, not the end.

    Nodes need the package and the image sets, under the same paths; each keeps a cache of its own unless the folder is
    shared. A task is the spec and a number, a result some numbers: nothing large travels.
    """
    if not tasks:
        return
    ray = _ray()
    with _connected(ray, address):
        send = ray.remote(num_cpus=1, num_gpus=_gpus(ray, place), max_retries=RETRIES)(work)
        everywhere = _same_everywhere(place)
        waiting = {send.remote(task, everywhere): task[1] for task in tasks}
        try:
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield _result(ray, ready, waiting.pop(ready))
        finally:  # of a run that was stopped: a cluster that others use too must not go on with it
            _cancel(ray, list(waiting))


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError("--ray needs ray: pip install 'queen[ray]'") from error
    return ray


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Use the cluster that this process is part of, else connect to the address, and leave it as it was."""
    if ray.is_initialized():
        yield
        return
    options = {"include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what we start reports to nobody, unless it is told to
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # ConnectionError is an OSError
        why = " ".join(str(error).split())[:200]
        raise OptionError(
            f"no Ray cluster at '{address}': {why}; expected host:port, 'auto' beside a running node, or 'local'"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself would try for minutes to reach a host where nobody listens."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()


def _gpus(ray: Any, place: Place) -> int:
    """GPUs of a cell; a cluster without any would wait for ever."""
    if not place.device.startswith("cuda"):
        return 0
    if ray.cluster_resources().get("GPU", 0) < 1:
        raise OptionError(f"device '{place.device}' needs a GPU, and this Ray cluster has none: leave out --device")
    return 1


def _same_everywhere(place: Place) -> Place:
    """Workers run in folders of their own, and see no GPU but the one they were given."""
    return replace(
        place,
        cache=str(Path(place.cache).absolute()),
        root=str(Path(place.root).absolute()) if place.root else None,
        device=place.device.partition(":")[0],
    )


def _result(ray: Any, reference: Any, index: int) -> Found:
    try:
        found: Found = ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        return index, {"error": f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"}
    return found


def _cancel(ray: Any, references: list[Any]) -> None:
    """Queued ones first, or they would start when the running ones end; a cancelled one is ready, too."""
    for _ in range(TRIES):
        if not references:
            return
        for reference in reversed(references):
            ray.cancel(reference, force=True)
        _, references = ray.wait(references, num_returns=len(references), timeout=1)
