"""Answers that say next to nothing about the class: the honest numbers, shuffled by a secret.

Every coarse cell of the feature space has a random order of the classes of its own. A query keeps its cell when it is
repeated or jittered, so it keeps its answer; different images mostly fall into different cells, so no fixed exchange
of classes undoes the shuffling (images that share a cell share an order, and tell that much). The numbers themselves
are honest, so they look as natural as they always did.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from math import floor

import numpy as np
import torch
from torch import Tensor

from queen.sentinel.sketch import CELL_NUMBERS, Sketch


def decoy(honest: Tensor, labels: Sequence[int], sketches: Sequence[Sketch], key: bytes, cell: float) -> Tensor:
    """(n, K) honest rows, each in the class order of its cell: the predicted class and a box around the sketch, whose
    side is `cell` in sketch units.

    The 2-D point would be the obvious thing to cut into cells, but the map stretches differences: on the
    demo, jitter of a thousandth of the input range moves one point in a hundred by half the radius of a query.
    """
    boxes = [[floor(s / cell) for s in sketch[:CELL_NUMBERS]] for sketch in sketches]
    drawn = b"".join([_draw(key, k, box, 8 * honest.shape[1]) for k, box in zip(labels, boxes, strict=True)])
    orders = np.frombuffer(drawn, np.uint64).reshape(honest.shape).argsort(axis=1, kind="stable")
    return honest.gather(1, torch.from_numpy(orders).to(honest.device))


def _draw(key: bytes, label: int, box: Sequence[int], size: int) -> bytes:
    """Random bytes that belong to a cell."""
    digest = hmac.digest(key, ",".join(map(str, (label, *box))).encode(), "sha256")
    return hashlib.shake_256(digest).digest(size)
