"""Cells on a Ray cluster: one core each, and one GPU where a GPU is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queen.errors import OptionError
from queen.ray_cluster import connected, find_ray, worker_device

RETRIES = 3  # of a cell whose worker or node died
TRIES = 5  # to cancel what is left, a second each

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
    ray = find_ray()
    with connected(ray, address):
        send = ray.remote(num_cpus=1, num_gpus=_gpus(ray, place), max_retries=RETRIES)(work)
        there = _for_workers(place)
        waiting = {send.remote(task, there): task[1] for task in tasks}
        try:
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield _result(ray, ready, waiting.pop(ready))
        finally:  # of a run that was stopped: a cluster that others use too must not go on with it
            _cancel(ray, list(waiting))


def _gpus(ray: Any, place: Place) -> int:
    """GPUs of a cell; a cluster without any would wait for ever."""
    if not place.device.startswith("cuda"):
        return 0
    if ray.cluster_resources().get("GPU", 0) < 1:
        raise OptionError(f"device '{place.device}' needs a GPU, and this Ray cluster has none: leave out --device")
    return 1


def _for_workers(place: Place) -> Place:
    """The same place for workers, which run in folders of their own."""
    return replace(
        place,
        cache=str(Path(place.cache).absolute()),
        root=str(Path(place.root).absolute()) if place.root else None,
        device=worker_device(place.device),
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
