"""A training step that is taken thousands of times: on a GPU, as one CUDA graph.

A step is some hundred kernels, many of a few microseconds each; launching them one by one from Python takes longer than
running them. Recorded once and replayed, a step is one launch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from queen.errors import OptionError

EAGER = 3  # steps before the recording: optimisers and libraries set themselves up in the first ones


class RepeatedStep:
    """Calls `step(*inputs)`, always with tensors of the same shapes; on CUDA, after the first few calls, replays a
    recording of it, unless `record` is False.

    The step must read and write the same tensors each time: a learning rate that changes must be a tensor, and random
    numbers must come from the device's own state. One that waits for the GPU cannot be recorded: an `OptionError`.
    """

    def __init__(self, step: Callable[..., None], *, record: bool = True) -> None:
        self._step, self._calls, self._replays = step, 0, record
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> None:
        """Take one step."""
        self._calls += 1
        if not (self._replays and inputs[0].is_cuda):
            self._step(*inputs)
        elif self._calls <= EAGER:
            self._step_aside(*inputs)
        else:
            if self._graph is None:
                self._record(*inputs)
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
            self._graph.replay()  # type: ignore[union-attr]

    def _record(self, *inputs: Tensor) -> None:
        self._inputs, self._graph = tuple(given.clone() for given in inputs), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph):
                self._step(*self._inputs)
        except RuntimeError as error:  # as torch's errors of CUDA are; the end of a recording hides what broke it
            cause = str(error.__context__ or error).partition("\n")[0]
            raise OptionError(
                f"this network cannot be recorded as a CUDA graph ({cause}): set Schedule(record=False) and start again"
            ) from error

    def _step_aside(self, *inputs: Tensor) -> None:
        """One step off the default stream: CUDA graphs require that a recorded step has not run there before."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
