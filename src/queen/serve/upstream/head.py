"""The last layer of a network that nobody has here: solved from the features and logits that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from queen.bundle.model import is_same
from queen.errors import EmptyBatchError, HeadError
from queen.types import Inputs

Ask = Callable[[Inputs], tuple[Tensor, Tensor]]
"""Inputs -> features (n, D) and logits (n, K), as the upstream gives them."""

MOST_FEATURES = 4096  # for which a layer is solved; more would take too much memory
ROWS_PER_FEATURE = 3  # to solve with
LEFT_OUT = 5  # one row of so many is not used to solve, but to try the result on
CUTOFF = 1e-6  # singular values below this share of the largest are rounding, and nothing else
GIVE_WEIGHTS = "give the weights of the last layer (--weights FILE --head NAME)"


def solve_head(ask: Ask, batches: Iterable[Inputs]) -> nn.Linear:
    """The linear layer that maps features to logits, for these inputs and for odd ones made of them.

    Half of the rows are odd: an attacker's are too, and units that no honest input wakes must have their weights.
    """
    generator = torch.Generator().manual_seed(0)
    pairs: list[tuple[Tensor, Tensor]] = []
    rows = 0
    for x in batches:
        for part in (x, odd(x, generator)):
            features, logits = ask(part)
            pairs.append((features, logits))
            rows += len(features)
        width = pairs[0][0].shape[1]
        if width > MOST_FEATURES:
            raise HeadError(
                f"expected at most {MOST_FEATURES} features to solve for the head, got {width}: {GIVE_WEIGHTS}"
            )
        if rows * (LEFT_OUT - 1) >= ROWS_PER_FEATURE * LEFT_OUT * (width + 1):
            break
    if not pairs:
        raise EmptyBatchError("the data holds no images")
    features, logits = (torch.cat(column) for column in zip(*pairs, strict=True))
    left_out = torch.arange(len(features)) % LEFT_OUT == 0
    head = _fit(features[~left_out], logits[~left_out])
    with torch.inference_mode():
        if not is_same(head(features[left_out]), logits[left_out]):
            raise HeadError(
                f"no linear layer maps the upstream's features {tuple(features.shape)} to its logits, as far as {rows} "
                f"rows tell: name the outputs of the last layer before the logits, and the logits before any softmax; "
                f"give more data; or {GIVE_WEIGHTS}"
            )
    return _fit(features, logits)


def odd(x: Inputs, generator: torch.Generator) -> Inputs:
    """Inputs that nobody would send: every other image with its numbers shuffled, the others noise as strong."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    flat = x.flatten(1)
    shuffled = flat[:, torch.randperm(flat.shape[1], generator=generator)]
    low, high = flat.aminmax()
    noise = low + (high - low) * torch.rand(flat.shape, generator=generator)
    half = (torch.arange(len(flat)) % 2 == 0)[:, None]
    return torch.where(half, shuffled, noise.to(flat.dtype)).view_as(x)


def _fit(features: Tensor, logits: Tensor) -> nn.Linear:
    ones = torch.ones(len(features), 1, dtype=torch.float64)
    columns = torch.cat([features.double(), ones], 1)
    solution = torch.linalg.lstsq(columns, logits.double(), rcond=CUTOFF, driver="gelsd").solution.float()
    return make_linear(solution[:-1].T, solution[-1])


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A layer with these weights (K, D) and biases (K,)."""
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        head.weight.copy_(weight)
        if bias is not None:
            head.bias.copy_(bias)
    return head.requires_grad_(False)


def identity(classes: int) -> nn.Linear:
    """The layer for an upstream that gives logits alone: they are their own features."""
    return make_linear(torch.eye(classes), None)
