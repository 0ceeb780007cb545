"""A few secret numbers by which a query is recognised when it comes again, exactly or nearly."""

from __future__ import annotations

import hashlib
from array import array
from itertools import product

import numpy as np
import torch
from torch import Tensor

SIZE = 8
CELL_NUMBERS = 4  # of a sketch that decide on the cell of a decoy: more part images better, and lose jitter sooner
Sketch = tuple[float, ...]
"""`SIZE` projections of a feature in units of the tolerance: two queries are the same if all differ by less than 1.
Float32 numbers, so that a store may keep four bytes of each."""
NO_DIGEST = 0  # of a query that was not answered: the same input again is not free


def directions(key: bytes, dims: int, tolerance: float) -> Tensor:
    """(dims, SIZE) matrix that maps features to sketches; unknown without the key, so nobody can aim at a sketch."""
    seed = int.from_bytes(hashlib.sha256(key).digest(), "little")
    normal = np.random.default_rng(seed).standard_normal((dims, SIZE))
    return torch.from_numpy(normal / tolerance).float()


COPY = 2e-3  # of the usual distance: whatever is nearer is the same picture, but for the noise of computing
JITTER = 1e-3  # of the input's range: what re-encoding does to a picture
LEAVING = 0.005  # share of so jittered queries that may leave their decoy's cell; wider cells also part images less


def measure_scales(features: Tensor, labels: Tensor, jittered: Tensor | None, rows: int = 4000) -> tuple[float, float]:
    """Two lengths in feature space: the tolerance, and the side of a decoy's cell.

    Within the tolerance two queries are the same picture sent again: half of what all but one in a hundred images keep
    from their nearest other one of the same predicted class. A cell is as wide as jitter asks (features of the same
    images, `jittered`), but never wider than the usual distance between images of one class, so that they part.
    """
    moved = None if jittered is None else torch.linalg.vector_norm(features - jittered, dim=1).mean().item()
    spread = torch.linspace(0, len(labels) - 1, min(rows, len(labels))).long().to(labels.device)  # not the first ones:
    features, labels = features[spread].double(), labels[spread]  # data may be sorted by class
    nearest, usual = [], []
    for k in labels.bincount().nonzero().flatten():
        same = features[labels == k]
        if len(same) > 1:
            apart = torch.cdist(same, same)
            usual.append(apart[apart > 0])
            nearest.append(apart.fill_diagonal_(torch.inf).amin(1))
    widest = torch.cat(usual).median().item() if usual and len(torch.cat(usual)) else 0.0
    nearest_all = torch.cat(nearest) if nearest else features.new_empty(0)
    nearest_all = nearest_all[nearest_all > COPY * widest]  # copies say nothing about different images
    if len(nearest_all) == 0:  # nothing to compare: only what is equal to the last digit is the same
        size = max(1e-30, features.abs().mean().item())
        return 1e-6 * size, 0.1 * size
    tolerance = 0.5 * nearest_all.quantile(0.01).item()
    # A projection of a move of length m crosses a border of cells w wide with probability .8 m / w.
    wanted = 0.5 * widest if moved is None else 0.8 * CELL_NUMBERS * moved / LEAVING
    return tolerance, min(max(wanted, 2 * tolerance), widest)


def repeats(features: Tensor, labels: Tensor, tolerance: float) -> Tensor:
    """(n,) whether an earlier image of the same predicted class lies within the tolerance."""
    found = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    for k in labels.bincount().nonzero().flatten():
        rows = (labels == k).nonzero().flatten()
        near = torch.cdist(features[rows].double(), features[rows].double()) < tolerance
        found[rows] = near.tril(-1).any(1)
    return found


class Memory:
    """The last `CAPACITY` distinct queries of a client: their digests (equal inputs) and sketches (nearly equal ones).

    The oldest is forgotten first, which never helps a client: a forgotten query counts as new. All of it is small
    arrays, since a server keeps them for every client: 42 bytes a query, and a hash table of the cells that the first
    `KEYS` numbers of the sketches lie in. A cell is `SIDE` wide, so whatever is near a number lies in the same cell, or
    in one of two if a border is near.
    """

    CAPACITY = 1024
    BUCKETS = 1024
    KEYS = 4  # more numbers part sketches better, and there are more cells to look into
    SIDE = 4.0  # wider cells are fewer to look into (2: always 16; 4: 5 of them) and hold more sketches
    __slots__ = ("count", "digests", "first", "following", "sketches")

    def __init__(self) -> None:
        self.count = 0  # distinct queries ever remembered; count modulo capacity is the next slot
        self.digests = array("q")
        self.sketches = array("f")  # SIZE numbers a slot
        self.first = array("h", [-1]) * self.BUCKETS  # a slot whose cell falls into this bucket
        self.following = array("h")  # for every slot, the next one in the same bucket; -1: none

    @property
    def size(self) -> int:
        """Queries remembered now."""
        return len(self.digests)

    def has_same(self, digest: int) -> bool:
        """Whether this very input was remembered; it is near then, which is quicker to see."""
        return digest != NO_DIGEST and digest in self.digests

    def has_near(self, sketch: Sketch) -> bool:
        """Whether a query with nearly this feature was remembered."""
        first, following, sketches, side = self.first, self.following, self.sketches, self.SIDE
        sides = []
        for value in sketch[: self.KEYS]:
            low, high = (value - 1.0) // side, (value + 1.0) // side
            sides.append((low,) if low == high else (low, high))
        for cell in product(*sides):
            slot = first[hash(cell) % self.BUCKETS]
            while slot >= 0:
                known = SIZE * (slot + 1)
                for value in reversed(sketch):  # the first numbers are those that the cell has compared roughly
                    known -= 1
                    if not -1.0 < sketches[known] - value < 1.0:
                        break
                else:
                    return True
                slot = following[slot]
        return False

    def add(self, digest: int, sketch: Sketch) -> None:
        """Remember a query in the next slot."""
        slot = self.count % self.CAPACITY
        kept = array("f", sketch)  # rounded, if it was not float32: the bucket must be found again
        bucket = self._bucket(kept)
        if slot < len(self.digests):
            self._unlink(slot)
            self.digests[slot] = digest
            self.sketches[SIZE * slot : SIZE * (slot + 1)] = kept
            self.following[slot] = self.first[bucket]
        else:
            self.digests.append(digest)
            self.sketches.extend(kept)
            self.following.append(self.first[bucket])
        self.first[bucket] = slot
        self.count += 1

    def _bucket(self, kept: array[float]) -> int:
        side = self.SIDE
        return hash(tuple([v // side for v in kept[: self.KEYS]])) % self.BUCKETS

    def _unlink(self, slot: int) -> None:
        """Take a slot out of its bucket."""
        bucket, following = self._bucket(self.sketches[SIZE * slot : SIZE * (slot + 1)]), self.following
        other = self.first[bucket]
        if other == slot:
            self.first[bucket] = following[slot]
            return
        while following[other] != slot:
            other = following[other]
        following[other] = following[slot]

    def slot(self, number: int) -> tuple[int, Sketch]:
        """What a slot holds."""
        return self.digests[number], tuple(self.sketches[SIZE * number : SIZE * (number + 1)])
