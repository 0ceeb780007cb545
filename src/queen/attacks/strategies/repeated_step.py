"""A small training step that is taken thousands of times: on a GPU, as one CUDA graph.

A step of a tiny network is about fifty kernels of a few microseconds each; launching them one by one from Python takes
several times as long as running them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EAGER = 3  # steps before the recording: optimisers and libraries set themselves up in the first ones


class RepeatedStep:
    """Calls `step(rows)` with rows (n,), always as many; on CUDA, after the first few calls, replays a recording of it.

    The step must read and write the same tensors each time: a learning rate that changes must be a tensor.
    """

    def __init__(self, step: Callable[[Tensor], None]) -> None:
        self._step, self._calls = step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rows: Tensor | None = None

    def __call__(self, rows: Tensor) -> None:
        """Take one step."""
        self._calls += 1
        if not rows.is_cuda or self._calls <= EAGER:
            self._step_eagerly(rows)
            return
        if self._graph is None or self._rows is None:
            self._rows, self._graph = rows.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step(self._rows)
        self._rows.copy_(rows)
        self._graph.replay()

    def _step_eagerly(self, rows: Tensor) -> None:
        if not rows.is_cuda:
            self._step(rows)
            return
        # CUDA graphs require that a recorded step has not run on the default stream before.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(rows)
        torch.cuda.current_stream().wait_stream(aside)
