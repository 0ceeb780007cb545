"""Training a network on hard or soft labels, and saying when a run is worthless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.core.split import run_model
from queen.errors import OptionError
from queen.zoo import seeded

DECAYS = ("linear", "step", "constant")
PADDING = 4  # of a random crop


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast a network learns.

    SGD; the rate falls to zero linearly, halves every `halve_every` epochs (step) or stays. `clip` bounds the norm of
    a gradient: training on few images blows up now and then. `augment` shifts and mirrors images at random. With few
    images there are more epochs, until there were `min_steps` steps.
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


def train(
    model: nn.Module,
    x: Tensor,
    targets: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
    *,
    on_epoch: Callable[[nn.Module], None] | None = None,
    extra_loss: Callable[[nn.Module], Tensor] | None = None,
    outliers: Tensor | None = None,
    outlier_weight: float = 1.0,
) -> nn.Module:
    """Train on images x (n, ...) and labels (n,) or probabilities (n, K), on the device of x; returns the model.

    `generator` is a CPU one. `extra_loss` is added at every step; `on_epoch` gets the model after every epoch, in
    eval mode. With `outliers`, as many of them are added to every batch, in turn, and the model learns to be unsure of
    them. On CUDA it trains in bfloat16, which is faster by far and not repeatable to the last bit.
    """
    model.to(x.device).train()
    if x.ndim == 4:  # about a third faster on a CPU
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    fused = x.is_cuda or None
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        fused=fused,
    )
    epochs, per_epoch = schedule.plan(len(x))
    steps = epochs * per_epoch
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: schedule.rate(step, steps))
    step = 0
    with seeded(_copy_generator(generator)):  # dropout takes from the global random state
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator).to(x.device, non_blocking=True)
            for rows in order.tensor_split(per_epoch):
                batch = augmented(x[rows], generator) if schedule.augment else x[rows]
                if outliers is not None:
                    batch = torch.cat([batch, _take_cyclically(outliers, step, len(rows))])
                optimiser.zero_grad(set_to_none=True)
                with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
                    logits = run_model(model, batch).float()
                    loss = F.cross_entropy(logits[: len(rows)], targets[rows])
                    if outliers is not None:
                        unsure = logits[len(rows) :]
                        loss = loss + outlier_weight * (unsure.logsumexp(1) - unsure.mean(1)).mean()
                    if extra_loss is not None:
                        loss = loss + extra_loss(model)
                loss.backward()  # type: ignore[no-untyped-call]
                if schedule.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
                optimiser.step()
                rates.step()
                step += 1
            if on_epoch is not None:
                on_epoch(model.eval())
                model.train()
    return model.eval()


def _copy_generator(generator: torch.Generator) -> torch.Generator:
    """Another generator in the same state, so that drawing from it leaves this one alone."""
    copied = torch.Generator()
    copied.set_state(generator.get_state())
    return copied


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: with several, sums and so whole runs would depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _take_cyclically(images: Tensor, step: int, count: int) -> Tensor:
    """The `count` images of a step, from the first to the last and then from the first again."""
    return images[torch.arange(step * count, (step + 1) * count, device=images.device) % len(images)]


def augmented(x: Tensor, generator: torch.Generator, *, mirror: bool = True) -> Tensor:
    """Images (n, C, H, W), each shifted by up to `PADDING` pixels (small ones by an eighth) and perhaps mirrored."""
    n, _, height, width = x.shape
    reach = min(PADDING, max(1, height // 8))
    padded = F.pad(x, (reach,) * 4)
    dy, dx = torch.randint(0, 2 * reach + 1, (2, n), generator=generator).to(x.device)
    mirrored = (torch.rand(n, generator=generator) < (0.5 if mirror else 0)).to(x.device)
    lines = dy[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(n, width)
    columns = dx[:, None] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    rows = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[rows, lines[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.inference_mode()
def predict(model: nn.Module, x: Tensor, batch: int = 512) -> Tensor:
    """Labels (n,) the model gives to x."""
    return torch.cat([run_model(model, part).argmax(1) for part in x.split(batch)])  # type: ignore[no-untyped-call]


@torch.no_grad()  # not inference mode, whose tensors may not enter autograd: thieves are trained on these
def probabilities(model: nn.Module, x: Tensor, batch: int = 512) -> Tensor:
    """The model's softmax (n, K) in float32."""
    return torch.cat([run_model(model, part).float().softmax(1) for part in x.split(batch)])  # type: ignore[no-untyped-call]


def collapsed(predictions: Tensor) -> bool:
    """Whether one class takes more than 99 % of the predictions: a failed training run, not a defense's success."""
    return bool(predictions.bincount().max() > 0.99 * len(predictions))
