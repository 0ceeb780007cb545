"""How long and how fast a network learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queen.errors import OptionError

LATER: Mapping[str, Any] = {"later": True}  # metadata of a field that a spec leaves unsaid at its default
DECAYS = ("linear", "step", "constant")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast a network learns.

    SGD; the rate falls to zero linearly, halves every `halve_every` epochs (step) or stays. `clip` bounds the norm of
    a gradient: training on few images blows up now and then. `augment` shifts and mirrors images at random. With few
    images there are more epochs, until there were `min_steps` steps.

    On CUDA a step is recorded once as a CUDA graph and replayed, compiled where that pays. Without `record` every step
    is taken in Python, at a third of the speed: for networks that wait for the GPU in their forward pass, as `.item()`
    and branches on numbers do, of which there is no recording.

    With `repeatable` the same generator gives the same weights to the last bit, on the same kind of GPU with the same
    torch, so that a network can be trained again instead of carried along. It costs the compiling.

    With `bfloat16` a CPU, too, works in bfloat16 where that is exact enough, as CUDA always does: for CPUs that compute
    in it (AMX, AVX-512), since on others it is slower.
    """

    epochs: int = 30
    lr: float = 0.05
    batch: int = 64
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay: str = "linear"
    halve_every: int = 10
    clip: float | None = 2.0
    augment: bool = False
    min_steps: int = 1
    record: bool = field(default=True, metadata=LATER)
    repeatable: bool = field(default=False, metadata=LATER)
    bfloat16: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise OptionError(f"no decay '{self.decay}'; known: {', '.join(DECAYS)}")
        for name in ("epochs", "batch", "halve_every", "min_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")

    def plan(self, images: int) -> tuple[int, int]:
        """Epochs, and steps per epoch, for this number of images."""
        per_epoch = max(1, images // self.batch)
        return max(self.epochs, -(-self.min_steps // per_epoch)), per_epoch

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step, as a share of `lr`."""
        if self.decay == "linear":
            return 1 - step / steps
        if self.decay == "step":
            return float(0.5 ** (step * self.epochs // steps // self.halve_every))
        return 1.0
