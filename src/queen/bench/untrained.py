"""Something to measure the speed of: an untrained VGG16-BN and images with a pattern a class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from queen.zoo import build, seeded

CLASSES = 10
NETWORK = "vgg16_bn"


def network(generator: torch.Generator) -> nn.Module:
    """The network, for images (n, 3, 32, 32)."""
    with seeded(generator):  # the verdicts, and so the work, depend on the weights
        model = build(NETWORK, classes=CLASSES, channels=3).eval().requires_grad_(False)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy copies of one pattern a class: benign traffic comes from the same source as the fitted data."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    x = 0.5 * torch.randn(count, 3, 32, 32, generator=generator) + patterns[labels]
    return x.contiguous(memory_format=torch.channels_last), labels
