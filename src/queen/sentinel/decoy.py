"""Answers that say next to nothing about the class: the honest numbers, shuffled by a secret.

The feature space is cut into coarse boxes, and every box has its own random order of the classes. A query stays in its
box when it is repeated or jittered, so it keeps its answer; different images mostly fall into different boxes, so no
fixed exchange of classes undoes the shuffling (images that share a box share an order, and reveal that much). The
numbers themselves are honest, so they look as natural as ever.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from math import floor

import numpy as np
import torch
from torch import Tensor

from queen.sentinel.sketch import BOX_NUMBERS, Sketch


def decoy(honest: Tensor, labels: Sequence[int], sketches: Sequence[Sketch], key: bytes, side: float) -> Tensor:
    """(n, K) honest rows, each in the order of its predicted class and box; boxes are `side` sketch units wide.

    The 2-D points would be the obvious thing to cut into boxes, but the map stretches differences: on the demo, jitter
    of a thousandth of the input range moves one point in a hundred by half the radius of a query.
    """
    boxes = [[floor(s / side) for s in sketch[:BOX_NUMBERS]] for sketch in sketches]
    drawn = b"".join([_draw(key, k, box, 8 * honest.shape[1]) for k, box in zip(labels, boxes, strict=True)])
    orders = np.frombuffer(drawn, np.uint64).reshape(honest.shape).argsort(axis=1, kind="stable")
    return honest.gather(1, torch.from_numpy(orders).to(honest.device))


def _draw(key: bytes, label: int, box: Sequence[int], size: int) -> bytes:
    """The random bytes of a predicted class and box."""
    digest = hmac.digest(key, ",".join(map(str, (label, *box))).encode(), "sha256")
    return hashlib.shake_256(digest).digest(size)
