"""The words of this package: what goes in, what comes out and what can go wrong. Read this file first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

Oracle = Callable[[Tensor], Tensor]
"""(n, *input) -> (n, K), every row on the probability simplex: all that an attacker ever holds."""

Inputs = Tensor | Mapping[str, Tensor]
"""One batch for the model: a tensor, or named tensors (`input_ids`, `attention_mask`) as text models take them."""


MIN_RADIUS, MAX_RADIUS = 1e-6, 1e6  # beyond, the ledger's grid cells or squares would no longer be exact


class Verdict(Enum):
    """What the ledger says of one query (the paper's conditions A to D)."""

    OUTSIDE = "A"  # not in the sensitive disc of its class
    SPENT = "B"  # in the disc, new, and the class has given away its share
    FRESH = "C"  # in the disc, new, recorded
    REPEAT = "D"  # in the disc, overlapping an earlier record


@dataclass(frozen=True)
class Reply:
    """The guard's answer to one batch: `probabilities` (n, K) and one verdict a row."""

    probabilities: Tensor
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of a class's disc one client may see.

    `radius` is relative to the class's spread (rho = r / d), one number or one a class;
    `threshold` is the share t of the disc after which a class is spent.
    """

    radius: float | tuple[float, ...] = 0.02
    threshold: float = 0.2

    def __post_init__(self) -> None:
        radius, threshold = _plain(self.radius), _plain(self.threshold)
        radii = tuple(radius) if isinstance(radius, tuple | list) else (radius,)
        if not radii or not all(_is_number(r) and MIN_RADIUS <= r <= MAX_RADIUS for r in radii):
            raise LimitsError(f"radius must be a number from {MIN_RADIUS} to {MAX_RADIUS:g}, got {self.radius!r}")
        if not (_is_number(threshold) and 0 <= threshold <= sys.float_info.max):
            raise LimitsError(f"threshold must be a finite number, not negative, got {self.threshold!r}")
        as_floats = tuple(float(r) for r in radii)
        object.__setattr__(self, "radius", as_floats if isinstance(radius, tuple | list) else as_floats[0])
        object.__setattr__(self, "threshold", float(threshold))


def _plain(value: Any) -> Any:
    """Plain Python numbers for those of numpy and torch."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class QueenError(Exception):
    """Base of every error this package raises on purpose."""


class ShapeError(QueenError, ValueError):
    """An array or tensor has the wrong shape."""


class DtypeError(QueenError, TypeError):
    """An array or tensor has the wrong type of numbers, or is none at all."""


class NotFiniteError(QueenError, ValueError):
    """NaN or infinity where a number belongs."""


class EmptyBatchError(QueenError, ValueError):
    """A batch without rows."""


class ClientError(QueenError, ValueError):
    """A client name that is not a short, non-empty string."""


class LabelError(QueenError, ValueError):
    """A label outside 0 .. K-1."""


class LimitsError(QueenError, ValueError):
    """A radius or threshold that makes no sense."""


class PolicyError(QueenError, ValueError):
    """A policy nobody knows."""


class OptionError(QueenError, ValueError):
    """An option with a value nobody knows."""


class ModelError(QueenError):
    """The model failed on an input that looked right."""


class HeadError(QueenError):
    """The model has no usable last layer: head(feature) must equal the model's logits."""


class EmptyClassError(QueenError):
    """A class without training images."""


class SpreadError(QueenError):
    """A class whose 2-D points all coincide, or are not finite."""


class TooFewClassesError(QueenError):
    """A classifier of fewer than two classes has nothing to protect."""


class MapError(QueenError):
    """The 2-D map does not tell the classes apart."""


class BundleError(QueenError):
    """A bundle that is missing, truncated, tampered with or of an unknown version."""


class BundleModelError(BundleError):
    """The bundle belongs to another model, or the model cannot be rebuilt."""


class SecretError(QueenError):
    """The secret file is missing, malformed or readable by others."""


class LedgerError(QueenError):
    """The ledger could not record, so nothing may be answered."""
