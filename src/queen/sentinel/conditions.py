"""Conditions under which honest clients take images: noise, blur, JPEG and so on.

Every condition maps images (n, C, H, W) with values in 0..1 to images of the same kind. A name may carry a strength
after a colon, for example "noise:0.06".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from queen.errors import OptionError, ShapeError

CLEAN = "clean"


def _noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    return x + sigma * torch.randn(x.shape, generator=generator).to(x)


def _blur(x: Tensor, width: float, generator: torch.Generator) -> Tensor:
    """The mean over `width` x `width` pixels; an even width is rounded up to the next odd number."""
    reach = int(width) // 2
    padded = F.pad(x, (reach,) * 4, mode="replicate")
    return F.avg_pool2d(padded, 2 * reach + 1, stride=1)


def _brightness(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    return x * factor


def _contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _downscale(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    """Scaled down by `factor` and back."""
    size = [max(1, round(side / factor)) for side in x.shape[-2:]]
    small = F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
    return F.interpolate(small, x.shape[-2:], mode="bilinear", align_corners=False)


def _jpeg(x: Tensor, quality: float, generator: torch.Generator) -> Tensor:
    from PIL import Image  # noqa: PLC0415  (an extra)

    if x.shape[1] not in (1, 3):
        raise ShapeError(f"JPEG needs images of 1 or 3 channels, got {x.shape[1]}")
    decoded = []
    for image in (x * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy():
        file = BytesIO()
        Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "JPEG", quality=int(quality))
        decoded.append(np.asarray(Image.open(file)).reshape(image.shape))
    return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).to(x) / 255


Condition = Callable[[Tensor, float, torch.Generator], Tensor]
CONDITIONS: Mapping[str, tuple[Condition, float, float, float]] = {  # name: function, default strength, least and most
    "noise": (_noise, 8 / 255, 1e-6, 1),
    "blur": (_blur, 3, 3, 99),
    "brightness": (_brightness, 1.3, 0.01, 100),
    "contrast": (_contrast, 0.7, 0.01, 100),
    "downscale": (_downscale, 2, 1.01, 64),
    "jpeg": (_jpeg, 50, 1, 95),
}


def check_condition(name: str) -> str:
    """The name, if it is that of a condition and its strength, if it has one, is a number in the condition's range."""
    kind, colon, strength = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in CONDITIONS:
        raise OptionError(f"no condition '{name}'; known: {', '.join(CONDITIONS)}, each with an optional :strength")
    _, default, least, most = CONDITIONS[kind]
    try:
        valid = not colon or least <= float(strength) <= most
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(
            f"the strength in '{name}' must be a number from {least:g} to {most:g}, as in {kind}:{default:g}"
        )
    return name


def apply(name: str, x: Tensor, generator: torch.Generator) -> Tensor:
    """Images (n, C, H, W) in 0..1 under a condition, in 0..1 again."""
    if name == CLEAN:
        return x
    kind, _, strength = check_condition(name).partition(":")
    change, default, _, _ = CONDITIONS[kind]
    return change(x, float(strength) if strength else default, generator).clamp(0, 1)
