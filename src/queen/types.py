"""The words of this package: what goes in and what comes out. Read this file first, then `errors` and `options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from queen.options import Limits, Sentinel

__all__ = ["Arrays", "Inputs", "Limits", "Oracle", "Reply", "Sentinel", "Verdict"]

Oracle = Callable[[Tensor], Tensor]
"""(n, *input) -> (n, K), every row on the probability simplex: all that an attacker ever holds."""

Inputs = Tensor | Mapping[str, Tensor]
"""One batch for the model: a tensor, or named tensors (`input_ids`, `attention_mask`) as text models take them."""

Arrays = NDArray[Any] | Mapping[str, NDArray[Any]]
"""The same as numpy arrays."""

Answers = TypeVar("Answers", Tensor, NDArray[np.float32], default=Tensor)
"""Tensors for those who ask with tensors, arrays for those who ask with arrays."""


class Verdict(Enum):
    """What the ledger says of one query (the paper's conditions A to D)."""

    OUTSIDE = "A"  # not in the sensitive disc of its class
    SPENT = "B"  # in the disc, new, and the class has given away its share
    FRESH = "C"  # in the disc, new, recorded
    REPEAT = "D"  # in the disc, overlapping an earlier record


@dataclass(frozen=True)
class Reply(Generic[Answers]):
    """The guard's answer to one batch: `probabilities` (n, K), one verdict per row, and three masks (n,).

    `alarmed`: the client stands accused of extraction; `refused`: the row got no answer and holds 1/K everywhere;
    `honest`: it holds the model's own answer, rounded at most.
    """

    probabilities: Answers
    verdicts: tuple[Verdict, ...]
    alarmed: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    honest: NDArray[np.bool_]
