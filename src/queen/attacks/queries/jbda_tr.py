"""JBDA-TR: a few images of the pool, then perturbed copies of all that was asked, round by round.

Every round trains a fresh thief on the answers so far and pushes each image towards random classes of that thief: 8
steps by the sign of the gradient, with another random class in every step, in 3 independent runs. So the number of
images grows fourfold per round: 1000, 4000, 16000, and a random part of the next 48000 up to the budget of 50000.

`jbda_clip` says what may be asked. "pixel": pixels stay in 0..1, and `jbda_epsilon` is in pixels. "normalised": pixels
stay in 0..1, but epsilon is in units of (pixel - mean) / std, as published: a fifth as far. "peer": as published code
does it, which also clips the normalised numbers to 0..1, so that everything darker than the mean becomes the mean, and
everything over a standard deviation brighter is cut off. Mean and std are CIFAR's where there are 3 channels, the
pool's own otherwise.

However few answers there are, a round's thief is trained for `jbda_min_steps` steps. Attacks that believe the same of
the same answers train the same thieves, so these are cached. After a round that was refused as a whole, the next one
is of new images of the pool, as the first is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Attack, BudgetError, CountedOracle, Knowledge, Transcript, join
from queen.attacks.queries.rounds import train_round
from queen.core.split import run_model
from queen.errors import OptionError

CLIPS = ("pixel", "normalised", "peer")
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
REACH = 1.85  # all steps together, in epsilons
BATCH = 512


@dataclass(frozen=True)
class Units:
    """The units in which an image is perturbed, (pixel - mean) / std, and whether it is clipped to 0..1 of those."""

    mean: Tensor
    std: Tensor
    clipped: bool = False

    def clip(self, x: Tensor) -> Tensor:
        """The images x (n, ...) as they may be asked."""
        return (torch.clamp(x, self.mean, self.mean + self.std) if self.clipped else x).clamp(0, 1)


def units_of(knowledge: Knowledge) -> Units:
    """The units that `jbda_clip` asks for."""
    clip, pool = knowledge.sizes.jbda_clip, knowledge.pool
    if clip not in CLIPS:
        raise OptionError(f"no jbda_clip '{clip}'; known: {', '.join(CLIPS)}")
    if clip == "pixel":
        return Units(pool.new_zeros(()), pool.new_ones(()))
    if pool.ndim == 4 and pool.shape[1] == 3:
        mean, std = (pool.new_tensor(numbers).view(3, 1, 1) for numbers in (CIFAR_MEAN, CIFAR_STD))
        return Units(mean, std, clipped=clip == "peer")
    axes = (0, 2, 3) if pool.ndim == 4 else tuple(range(pool.ndim))
    mean, std = (f(pool, dim=axes, keepdim=True)[0] for f in (torch.mean, torch.std))
    return Units(mean, std.clamp(min=1e-6), clipped=clip == "peer")


def jbda_tr(
    oracle: CountedOracle, attack: Attack, knowledge: Knowledge, budget: int, generator: torch.Generator
) -> Transcript:
    """Ask for seeds, then rounds of perturbed copies, until the budget is spent to the last query.

    A round that follows one without answers is of seeds again.
    """
    if budget < 1 or attack.cost(knowledge.sizes) != 1:
        raise BudgetError(
            f"JBDA-TR needs a budget of at least 1 and an attack that asks once an image, got a budget of {budget} "
            f"and {attack.cost(knowledge.sizes)} queries an image"
        )
    units = units_of(knowledge)
    # Thieves on the way only point the way: they take the published number of steps, not those the last one is worth.
    quick = replace(knowledge, schedule=replace(knowledge.schedule, min_steps=knowledge.sizes.jbda_min_steps))
    new = transcript = attack.ask(oracle, _draw_seeds(knowledge, budget, generator), knowledge, generator)
    asked = min(knowledge.sizes.jbda_seeds, budget, len(knowledge.pool))
    while asked < budget:
        if len(new) and len(transcript) > 1:
            thief = train_round(attack, transcript, quick, budget, generator)
            images = perturb_round(thief, transcript.x, budget - asked, knowledge, units, generator)
        else:  # the last round was refused: the same thief would only ask for more of the same
            images = _draw_seeds(knowledge, budget - asked, generator)
        new = attack.ask(oracle, images, knowledge, generator)
        transcript = join([transcript, new])
        asked += len(images)
    return transcript


def perturb_round(
    thief: nn.Module, x: Tensor, room: int, knowledge: Knowledge, units: Units, generator: torch.Generator
) -> Tensor:
    """`jbda_directions` perturbed copies of every x (n, ...), or `room` copies of random ones where that is fewer."""
    directions = knowledge.sizes.jbda_directions
    if directions * len(x) > room:
        rows = torch.randperm(len(x), generator=generator)[: -(-room // directions)]
        x = x[rows.to(x.device)]
    copies = [push(thief, x, knowledge, units, generator) for _ in range(directions)]
    return torch.cat(copies)[:room]


def push(thief: nn.Module, x: Tensor, knowledge: Knowledge, units: Units, generator: torch.Generator) -> Tensor:
    """Move x (n, ...) towards random classes of the thief by at most epsilon, and clip it."""
    thief.eval()
    parts = [_push_batch(thief, part, knowledge, units, generator) for part in x.split(BATCH)]  # type: ignore[no-untyped-call]
    return torch.cat(parts)


def _push_batch(thief: nn.Module, x: Tensor, knowledge: Knowledge, units: Units, generator: torch.Generator) -> Tensor:
    sizes = knowledge.sizes
    step = REACH * sizes.jbda_epsilon / sizes.jbda_steps
    delta = torch.zeros_like(x, requires_grad=True)
    all_targets = torch.randint(knowledge.classes, (sizes.jbda_steps, len(x)), generator=generator)
    for targets in all_targets.to(x.device):
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            logits = run_model(thief, x + units.std * delta)
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")
        (slope,) = torch.autograd.grad(loss, delta)
        with torch.no_grad():
            delta -= step * slope.sign()
            delta.clamp_(-sizes.jbda_epsilon, sizes.jbda_epsilon)
    return units.clip(x + units.std * delta.detach())


def _draw_seeds(knowledge: Knowledge, room: int, generator: torch.Generator) -> Tensor:
    pool = knowledge.pool
    count = min(knowledge.sizes.jbda_seeds, room)
    return pool[torch.randperm(len(pool), generator=generator)[:count].to(pool.device)]
