"""Checks that an attack has what it needs: a field of `Knowledge`, images rather than other inputs."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from queen.errors import OptionError, ShapeError

T = TypeVar("T")


def require(value: T | None, name: str) -> T:
    """The value of a field of `Knowledge` that this attack cannot do without."""
    if value is None:
        raise OptionError(f"this attack needs Knowledge.{name}, got None; pass Knowledge({name}=...) or leave it out")
    return value


def require_images(x: Tensor) -> None:
    """Refuse inputs that are no images, for attacks that shift, mirror or turn them."""
    if x.ndim != 4:
        raise ShapeError(f"this attack needs images (n, channels, height, width), got {tuple(x.shape)}")
