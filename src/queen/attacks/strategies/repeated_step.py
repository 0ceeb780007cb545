"""The same small training step, thousands of times: on a GPU as one CUDA graph.

A step of a tiny network is some fifty kernels of a few microseconds each; launching them one by one from Python takes
several times as long as running them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EAGER = 3  # steps before the recording: optimisers and libraries set themselves up in the first


class RepeatedStep:
    """Calls `step(rows)` with rows (n,) of one size; on CUDA, after the first few calls, replays a recording of it.

    What the step reads and writes must stay where it is: a learning rate that changes must be a tensor.
    """

    def __init__(self, step: Callable[[Tensor], None]) -> None:
        self._step, self._calls = step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rows: Tensor | None = None

    def __call__(self, rows: Tensor) -> None:
        """One step."""
        self._calls += 1
        if not rows.is_cuda or self._calls <= EAGER:
            self._eagerly(rows)
            return
        if self._graph is None or self._rows is None:
            self._rows, self._graph = rows.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step(self._rows)
        self._rows.copy_(rows)
        self._graph.replay()

    def _eagerly(self, rows: Tensor) -> None:
        if not rows.is_cuda:
            self._step(rows)
            return
        # What is recorded must not have run on the default stream before.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(rows)
        torch.cuda.current_stream().wait_stream(aside)
