"""g: features -> the plane, trained with the supervised contrastive loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from queen.errors import MapError

MAX_GRADIENT = 3.0
MOST_PAIRS = 2**24  # points compared at a time: all of them in a batch of up to 341 classes
LossForm = Literal["out", "in"]


@dataclass(frozen=True, kw_only=True)
class MapRecipe:
    """How the map is trained; the defaults are the paper's where the paper says."""

    widths: tuple[int, ...] = (256, 128, 64)  # with narrower ends (32, 8) units die for some seeds
    epochs: int = 100
    batch: int | None = None  # None: 12 images per class, at least 128
    lr: float = 0.01
    momentum: float = 0.9
    halve_every: int = 20
    temperature: float = 1.0
    loss: LossForm = "out"
    normalize: bool = False

    def batch_for(self, classes: int) -> int:
        """How many images make a batch where there are so many classes."""
        return self.batch or max(128, 12 * classes)


class MappingNet(nn.Module):
    """Four fully connected layers, D -> 256 -> 128 -> 64 -> 2.

    Paper: features are divided by their training root mean square first (`scale`), because the features
    of different networks differ by orders of magnitude and one learning rate has to fit them all.
    """

    scale: Tensor

    def __init__(self, features: int, widths: tuple[int, ...] = (256, 128, 64), *, normalize: bool = False) -> None:
        super().__init__()
        sizes = (features, *widths, 2)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.normalize = normalize
        self.register_buffer("scale", torch.ones(()))

    def forward(self, u: Tensor) -> Tensor:
        """(n, D) -> (n, 2)."""
        z = u * self.scale
        *hidden, last = self.layers
        for layer in hidden:
            z = F.linear(z, layer.weight, layer.bias).relu_()  # type: ignore[arg-type]
        z = F.linear(z, last.weight, last.bias)  # type: ignore[arg-type]
        return F.normalize(z, dim=1) if self.normalize else z

    def reset(self, generator: torch.Generator) -> None:
        """Fresh weights from `generator`, so that the global random state is neither used nor changed."""
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)  # noqa: S101  (for the type checker)
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def contrastive_loss(z: Tensor, labels: Tensor, *, temperature: float = 1.0, form: LossForm = "out") -> Tensor:
    """Supervised contrastive loss of points z (n, 2), mean over the rows that have a partner.

    Paper: the printed equation is the "in" form, -log(mean_o softmax); "out", -mean_o log softmax, is the default
    because it separates the classes clearly better (docs/paper.md).
    """
    rows = max(1, MOST_PAIRS // len(z))
    if rows >= len(z):
        losses, counts = _row_losses(z, labels, 0, z, labels, temperature, form)
    else:  # block by block, each computed again for its gradient, so that memory grows with the points alone
        blocks = [
            checkpoint(_row_losses, z[i : i + rows], labels[i : i + rows], i, z, labels, temperature, form,
                       use_reentrant=False, preserve_rng_state=False)
            for i in range(0, len(z), rows)
        ]  # fmt: skip
        losses, counts = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return losses[counts > 0].mean()


def _row_losses(
    z: Tensor, labels: Tensor, first: int, others: Tensor, other_labels: Tensor, temperature: float, form: LossForm
) -> tuple[Tensor, Tensor]:
    """Losses (m,) of points z (m, 2) among all `others` (n, 2), where they are the rows from `first` on, and how many
    partners (m,) each has."""
    similarity = z @ others.T / temperature
    itself = torch.zeros_like(similarity, dtype=torch.bool)
    itself.diagonal(first).fill_(True)
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    partners = (labels[:, None] == other_labels[None, :]) & ~itself
    count = partners.sum(1)
    if form == "out":
        return -(log_share * partners).sum(1) / count.clamp(min=1), count
    return count.clamp(min=1).log() - log_share.masked_fill(~partners, -torch.inf).logsumexp(1), count


def train_map(
    features: Tensor,
    labels: Tensor,
    recipe: MapRecipe,
    generator: torch.Generator,
    on_epoch: Callable[[], None] = lambda: None,
) -> MappingNet:
    """Train g on features (n, D) and labels (n,); deterministic given `generator` (a CPU one)."""
    with torch.random.fork_rng(devices=[]):  # building a layer draws weights, which `reset` replaces
        net = MappingNet(features.shape[1], recipe.widths, normalize=recipe.normalize)
    net.reset(generator)
    net.scale.copy_(features.square().mean().sqrt().clamp(min=1e-12).reciprocal())
    net.to(features.device)
    optimiser = torch.optim.SGD(net.parameters(), lr=recipe.lr, momentum=recipe.momentum)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, recipe.halve_every, 0.5)
    batches = max(1, round(len(features) / recipe.batch_for(int(labels.max() + 1))))
    for _ in range(recipe.epochs):
        order = torch.randperm(len(features), generator=generator).to(features.device)
        for rows in order.tensor_split(batches):
            if labels[rows].bincount().max() < 2:  # no class has two images here: nothing to learn
                continue
            loss = contrastive_loss(net(features[rows]), labels[rows], temperature=recipe.temperature, form=recipe.loss)
            if not loss.isfinite():
                raise _divergence(recipe)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            # Paper: not mentioned; without it, un-normalised points of few images or classes run away for some seeds.
            nn.utils.clip_grad_norm_(net.parameters(), MAX_GRADIENT)
            optimiser.step()
        schedule.step()
        on_epoch()
    if not all(p.isfinite().all() for p in net.parameters()):
        raise _divergence(recipe)
    return net.eval().requires_grad_(False)


def _divergence(recipe: MapRecipe) -> MapError:
    advice = f"lower its learning rate, now {recipe.lr}, or raise its temperature, now {recipe.temperature}"
    return MapError(f"the map diverged: {advice}")
