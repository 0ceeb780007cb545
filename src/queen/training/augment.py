"""Images shifted and mirrored at random, as most image classifiers are trained."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4  # of a random crop


def augmented(x: Tensor, generator: torch.Generator | None, *, mirror: bool = True) -> Tensor:
    """Images (n, C, H, W), each shifted by up to `PADDING` pixels (small ones by an eighth) and perhaps mirrored.

    Random numbers come from the CPU generator, or with None from the random state of the device of x, which can be
    recorded in a CUDA graph.
    """
    n, _, height, width = x.shape
    reach = min(PADDING, max(1, height // 8))
    padded = F.pad(x, (reach,) * 4)
    drawn_on = x.device if generator is None else None
    dy, dx = torch.randint(0, 2 * reach + 1, (2, n), generator=generator, device=drawn_on).to(x.device)
    mirrored = (torch.rand(n, generator=generator, device=drawn_on) < (0.5 if mirror else 0)).to(x.device)
    lines = dy[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(n, width)
    columns = dx[:, None] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    rows = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[rows, lines[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
