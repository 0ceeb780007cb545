"""Shadow models: weak pirates trained by the defender, so that gradient reverse knows what to reverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.core.split import run_model
from queen.recipe import Recipe
from queen.types import Inputs
from queen.zoo import seeded


class Shadows(Protocol):
    """S simulated pirates."""

    def __len__(self) -> int: ...

    def logits(self, features: Tensor, x: Inputs) -> Tensor:
        """Logits of every shadow, (n, S, K), for features (n, D) of the queries x."""
        ...

    def probabilities(self, features: Tensor, x: Inputs) -> Tensor:
        """Softmax of every shadow, (n, S, K)."""
        return self.logits(features, x).softmax(2)


@dataclass(frozen=True)
class HeadShadows(Shadows):
    """Linear pirates on the protectee's own features: weight (S, K, D), bias (S, K). Nearly free at query time."""

    weight: Tensor
    bias: Tensor

    def __len__(self) -> int:
        return len(self.weight)

    def logits(self, features: Tensor, x: Inputs) -> Tensor:
        """Logits of every shadow, (n, S, K); looks at features only."""
        shadows, classes, _ = self.weight.shape
        return F.linear(features, self.weight.flatten(0, 1), self.bias.flatten()).view(-1, shadows, classes)


@dataclass(frozen=True)
class NetworkShadows(Shadows):
    """Pirates with networks of their own that take x, as in the paper."""

    networks: tuple[nn.Module, ...]
    recipes: tuple[Recipe, ...]

    def __len__(self) -> int:
        return len(self.networks)

    def logits(self, features: Tensor, x: Inputs) -> Tensor:
        """Logits of every shadow, (n, S, K); looks at x only."""
        return torch.stack([run_model(network, x) for network in self.networks], 1)


def draw_mean(said: Tensor, drawn: Tensor) -> Tensor:
    """The pirates' answer: mean of what the drawn shadows said, (n, S, K), drawn (n, k) -> (n, K).

    They say their softmax, never logits, except where the authors' released code is reproduced.
    """
    rows = torch.arange(len(drawn), device=drawn.device)[:, None]
    return said[rows, drawn].mean(1)


def disjoint_subsets(
    labels: Tensor, classes: int, count: int, per_class: int, generator: torch.Generator
) -> tuple[list[Tensor], bool]:
    """`count` random subsets of row numbers, up to `per_class` rows per class in each, and whether they are disjoint.

    Paper: subsets are disjoint; where a class has fewer than `count` images they are drawn with replacement instead.
    """
    parts: list[list[Tensor]] = [[] for _ in range(count)]
    disjoint = True
    for k in range(classes):
        rows = (labels == k).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
        share = len(rows) // count
        if share == 0:
            disjoint = False
            size = min(per_class, max(1, len(rows) // 2))
            picks = torch.randint(len(rows), (count, size), generator=generator).to(rows.device)
            chosen = list(rows[picks])
        else:
            size = min(per_class, share)
            chosen = list(rows[: count * size].view(count, size))
        for part, of_class in zip(parts, chosen, strict=True):
            part.append(of_class)
    return [torch.cat(part) for part in parts], disjoint


def train_heads(
    features: Tensor,
    labels: Tensor,
    classes: int,
    subsets: Sequence[Tensor],
    generator: torch.Generator,
    *,
    steps: int = 5,
    lr: float = 0.1,
) -> HeadShadows:
    """One linear pirate per subset, all trained at once with `steps` full-batch gradient steps: weak on purpose.

    The gradient of softmax regression is written out, so nothing here needs autograd. Features are scaled to unit
    root mean square for training and the scale is folded into the weights afterwards.
    """
    count, dims = len(subsets), features.shape[1]
    scale = features.square().mean().sqrt().clamp(min=1e-12)
    weight = 0.01 * torch.randn(count, classes, dims, generator=generator).to(features)
    bias = torch.zeros(count, classes).to(features)
    for shadow, rows in enumerate(subsets):
        u, targets = features[rows] / scale, F.one_hot(labels[rows], classes).to(features.dtype)
        for _ in range(steps):
            error = (F.linear(u, weight[shadow], bias[shadow]).softmax(1) - targets) / len(rows)
            weight[shadow] -= lr * (error.T @ u)
            bias[shadow] -= lr * error.sum(0)
    return HeadShadows(weight / scale, bias)


def train_networks(
    x: Tensor,
    labels: Tensor,
    subsets: Sequence[Tensor],
    recipes: Sequence[Recipe],
    generator: torch.Generator,
    *,
    epochs: int = 5,
    batch: int = 64,
    lr: float = 0.01,
    on_model: Callable[[], None] = lambda: None,
) -> NetworkShadows:
    """One network per subset, the recipes in turn, few epochs: weak on purpose."""
    chosen = tuple(recipes[i % len(recipes)] for i in range(len(subsets)))
    networks = []
    for recipe, rows in zip(chosen, subsets, strict=True):
        with seeded(generator):
            network = recipe.build().to(x.device).train()
            optimiser = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
            for _ in range(epochs):
                order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
                batches = max(1, len(rows) // batch)  # rounded down: never a batch of one, as batch norm needs two
                for picked in order.tensor_split(batches):
                    optimiser.zero_grad(set_to_none=True)
                    loss = F.cross_entropy(run_model(network, x[picked]), labels[picked])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
        networks.append(network.eval().requires_grad_(False))
        on_model()
    return NetworkShadows(tuple(networks), chosen)
