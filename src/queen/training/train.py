"""The training loop: shuffled batches, SGD, and whatever else is added to the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.core.split import run_model
from queen.training.augment import augmented
from queen.training.compiled import compile_if_worth_it
from queen.training.repeated_step import RepeatedStep
from queen.training.schedule import Schedule
from queen.zoo import seeded


@dataclass(frozen=True)
class ExtraLoss:
    """A loss to be added at every step: `draw()` gives the step's tensors, `loss(*tensors)` the number.

    Apart, because on a GPU the loss is recorded and replayed, while what is drawn is new in every step. Tensors keep
    their shapes from step to step.
    """

    draw: Callable[[], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]


def train(
    model: nn.Module,
    x: Tensor,
    targets: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
    *,
    on_epoch: Callable[[nn.Module], None] | None = None,
    extra_loss: ExtraLoss | None = None,
    outliers: Tensor | None = None,
    outlier_weight: float = 1.0,
) -> nn.Module:
    """Train on images x (n, ...) and labels (n,) or probabilities (n, K), on the device of x; returns the model.

    `generator` is a CPU one. `on_epoch` gets the model after every epoch, in eval mode. With `outliers`, as many of
    them are added to every batch, in turn, and the model learns to be unsure of them. On CUDA it trains in bfloat16,
    which is faster by far, and the step is a recorded CUDA graph unless the schedule says otherwise; there, only a
    `repeatable` schedule gives the same weights to the last bit.
    """
    model.to(x.device).train()
    if x.ndim == 4:  # about a third faster on a CPU
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    recorded = schedule.record and x.is_cuda
    epochs, per_epoch = schedule.plan(len(x))
    optimiser = _make_optimiser(model, schedule, x.device, recorded=recorded)
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: schedule.rate(step, epochs * per_epoch))
    loss_of = _answer_loss(model, outlier_weight if outliers is not None else None)
    further_loss = None if extra_loss is None else extra_loss.loss
    images_per_step = min(schedule.batch, len(x))
    if recorded and not schedule.repeatable:  # how a network is compiled may differ from process to process
        kind = (model, (images_per_step, *x.shape[1:]), epochs * per_epoch)
        loss_of = compile_if_worth_it(loss_of, *kind)
        further_loss = further_loss and compile_if_worth_it(further_loss, *kind, name=further_loss.__qualname__)

    def step(rows: Tensor, *others: Tensor) -> None:
        batch = augmented(x[rows], None if recorded else generator) if schedule.augment else x[rows]
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda or schedule.bfloat16):
            if outliers is not None:
                batch, others = torch.cat([batch, outliers[others[0]]]), others[1:]
            loss = loss_of(batch, targets[rows])
            if further_loss is not None:
                loss = loss + further_loss(*others)
        loss.backward()  # type: ignore[no-untyped-call]
        if schedule.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimiser.step()

    take_step, number = RepeatedStep(step, record=recorded), 0
    # Dropout takes from the global random state.
    with seeded(_copy_generator(generator)), _deterministic_convolutions(wanted=schedule.repeatable):
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator).to(x.device, non_blocking=True)
            # A recording has one shape, so rows that fill no batch wait for the next epoch's order.
            for rows in (order[: per_epoch * images_per_step] if recorded else order).tensor_split(per_epoch):
                others = () if extra_loss is None else extra_loss.draw()
                if outliers is not None:
                    others = (_rows_in_turn(outliers, number, len(rows)), *others)
                take_step(rows, *others)
                rates.step()
                number += 1
            if on_epoch is not None:
                on_epoch(model.eval())
                model.train()
    return model.eval()


@contextmanager
def _deterministic_convolutions(*, wanted: bool) -> Iterator[None]:
    """Have convolutions add up in one order, if `wanted`: the only part of a step that would not on a GPU."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = before or wanted
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def _make_optimiser(model: nn.Module, schedule: Schedule, device: torch.device, *, recorded: bool) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(),
        lr=torch.tensor(schedule.lr, device=device) if recorded else schedule.lr,  # a recording reads a tensor
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        fused=device.type == "cuda" or None,
    )


def _answer_loss(model: nn.Module, outlier_weight: float | None) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a batch: cross-entropy with the targets (n,) or (n, K) of its first n rows; with a weight, the rows
    after them are outliers, of which the model must be unsure."""

    def loss_of(batch: Tensor, targets: Tensor) -> Tensor:
        logits = run_model(model, batch).float()
        loss = F.cross_entropy(logits[: len(targets)], targets)
        if outlier_weight is not None:
            unsure = logits[len(targets) :]
            loss = loss + outlier_weight * (unsure.logsumexp(1) - unsure.mean(1)).mean()
        return loss

    return loss_of


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


def _rows_in_turn(images: Tensor, step: int, count: int) -> Tensor:
    """The rows of the `count` images of a step, from the first to the last and then from the first again."""
    return torch.arange(step * count, (step + 1) * count, device=images.device) % len(images)
