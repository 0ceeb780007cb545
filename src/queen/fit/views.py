"""The same images under a condition, in the units that the model takes."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.errors import CalibrationError, ShapeError
from queen.fit.data import Images, image_batches
from queen.sentinel.conditions import CLEAN, apply
from queen.types import Inputs


def pixel_range(bundle: Bundle, data: Images) -> tuple[Tensor, Tensor]:
    """Black and the way to white, in the model's units: the bundle's pixel statistics, or the first batch's range."""
    like = bundle.probe.x
    if not isinstance(like, Tensor) or like.ndim != 4 or not like.is_floating_point():
        raise ShapeError("conditions are for images (n, C, H, W); calibrate this model without them")
    if bundle.pixel_mean and bundle.pixel_std:
        mean, std = (torch.tensor(v, device=like.device)[:, None, None] for v in (bundle.pixel_mean, bundle.pixel_std))
        return -mean / std, 1 / std
    first = next(iter(image_batches(data)), None)
    if first is None or not isinstance(first[0], Tensor):
        raise CalibrationError("the calibration data holds no images")
    low, high = first[0].min().to(like.device, torch.float32), first[0].max().to(like.device, torch.float32)
    return low, (high - low).clamp(min=1e-6)


def apply_condition(name: str, pixels: tuple[Tensor, Tensor] | None, generator: torch.Generator, x: Inputs) -> Inputs:
    """A batch under a condition, in the units the model takes."""
    if name == CLEAN or pixels is None or not isinstance(x, Tensor):
        return x
    black, range_ = pixels
    return (apply(name, (x.float() - black) / range_, generator) * range_ + black).to(x.dtype)
