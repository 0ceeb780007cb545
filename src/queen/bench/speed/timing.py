"""Times that are only compared with times of the same run, taken by turns so that a busy moment hits every side."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from queen.errors import OptionError
from queen.types import Oracle

WARM_UP_PAIRS = 2  # do not count
WARM_UP_TURNS = 1


class Answering(Protocol):
    """A service that has clients."""

    def client(self, name: str) -> Oracle:
        """How one client is answered."""
        ...


def seconds_of(function: Callable[[], object]) -> float:
    """How long a call takes, until the GPU is done too."""
    start = time.perf_counter()
    result = function()
    if isinstance(result, Tensor) and result.is_cuda:
        torch.cuda.synchronize(result.device)
    return time.perf_counter() - start


def paired_ratio(
    guarded: Callable[[Tensor], object], plain: Callable[[Tensor], object], batches: list[Tensor]
) -> float:
    """Median of guarded / plain time over the batches; both get every batch, and take turns to be the first."""
    ratios = []
    for pair, batch in enumerate(batches):
        seconds = {}
        for function in (guarded, plain) if pair % 2 else (plain, guarded):
            seconds[function] = seconds_of(lambda function=function, batch=batch: function(batch))  # type: ignore[misc]
        ratios.append(seconds[guarded] / seconds[plain])
    return statistics.median(ratios[WARM_UP_PAIRS:])


def time_in_turns(services: Mapping[str, Answering], x: Tensor, repeats: int) -> dict[str, list[float]]:
    """Seconds that every service takes for x (n, ...), one per turn, each time asked by a new client."""
    if "none" not in services:
        raise OptionError(f"expected the service 'none' to compare with, got: {', '.join(services) or 'nothing'}")
    seconds: dict[str, list[float]] = {name: [] for name in services}
    for turn in range(repeats + WARM_UP_TURNS):
        for name, service in services.items():
            oracle = service.client(f"speed {turn}")
            seconds[name].append(seconds_of(lambda oracle=oracle: oracle(x)))  # type: ignore[misc]
    return {name: times[WARM_UP_TURNS:] for name, times in seconds.items()}


def ratios_to_none(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Each service's time divided by that of the service "none" in the same turn; medians over the turns."""
    return {
        name: statistics.median(own / base for own, base in zip(times, seconds["none"], strict=True))
        for name, times in seconds.items()
    }


def seconds_per_thousand(seconds: Mapping[str, list[float]], queries: int) -> dict[str, float]:
    """Median seconds for 1,000 queries, given those for `queries` of them."""
    return {name: 1000 / queries * statistics.median(times) for name, times in seconds.items()}


def describe_machine() -> dict[str, int | str]:
    """What a reader must know of the machine that times were measured on."""
    return {
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
