"""Cells on a Ray cluster: one core each, and one GPU where a GPU is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queen.errors import OptionError
from queen.parallel.ray_cluster import connected, find_ray, worker_device

RETRIES = 3  # of a cell whose worker or node died
TRIES = 5  # to cancel the remaining tasks, a second each

Task = tuple[dict[str, Any], int]  # a spec as JSON, and the index of a cell
Outcome = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """Where cells run, and until when: the cache's folder, the device, the folder of published image sets, how many at
    once, and the time (seconds since 1970) from which no other cell is begun."""

    cache: str
    device: str = "cpu"
    root: str | None = None
    jobs: int = 1
    until: float = math.inf


def on_ray(
    work: Callable[[Task, Place], Outcome], tasks: Sequence[Task], place: Place, address: str
) -> Iterator[Outcome]:
    """Results in the order in which they are ready; a cell that loses its worker again and again is an error result.

    Nodes need the package and the image sets, under the same paths; each has a cache of its own unless the folder is
    shared. Nothing large travels: neither a task nor a result holds images or weights.
    """
    if not tasks:
        return
    ray = find_ray()
    with connected(ray, address):
        send = ray.remote(num_cpus=1, num_gpus=_count_gpus(ray, place), max_retries=RETRIES)(work)
        remote_place = _make_remote(place)
        waiting = {send.remote(task, remote_place): task[1] for task in tasks}
        try:
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield _fetch_outcome(ray, ready, waiting.pop(ready))
        finally:  # a cluster that others use, too, must not go on with a run that was stopped
            _cancel(ray, list(waiting))


def _count_gpus(ray: Any, place: Place) -> int:
    """How many GPUs a cell takes; on a cluster without any it would wait for ever."""
    if not place.device.startswith("cuda"):
        return 0
    if ray.cluster_resources().get("GPU", 0) < 1:
        raise OptionError(f"device '{place.device}' needs a GPU, and this Ray cluster has none: leave out --device")
    return 1


def _make_remote(place: Place) -> Place:
    """The same place for workers, who run in other folders and see no GPU but the one they were given."""
    return replace(
        place,
        cache=str(Path(place.cache).absolute()),
        root=str(Path(place.root).absolute()) if place.root else None,
        device=worker_device(place.device),
    )


def _fetch_outcome(ray: Any, reference: Any, index: int) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        return index, {"error": f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"}
    return outcome


def _cancel(ray: Any, references: list[Any]) -> None:
    """Cancel queued tasks first, or they would start when the running ones end; a cancelled task counts as ready."""
    for _ in range(TRIES):
        if not references:
            return
        for reference in reversed(references):
            ray.cancel(reference, force=True)
        _, references = ray.wait(references, num_returns=len(references), timeout=1)
