"""A few secret numbers per query, by which it is recognised when it comes again, exactly or nearly."""

from __future__ import annotations

import hashlib
from array import array
from itertools import product

import numpy as np
import torch
from torch import Tensor

SIZE = 8
Sketch = tuple[float, ...]
"""`SIZE` projections of a feature in units of the tolerance: two queries are the same if all differ by less than 1.
Float32 numbers, so that a store needs only four bytes for each."""


def directions(key: bytes, dims: int, tolerance: float) -> Tensor:
    """(dims, SIZE) matrix that maps features to sketches; unknown without the key, so nobody can aim at a sketch."""
    seed = int.from_bytes(hashlib.sha256(key).digest(), "little")
    normal = np.random.default_rng(seed).standard_normal((dims, SIZE))
    return torch.from_numpy(normal / tolerance).float()


COPY = 2e-3  # of the median distance: nearer images are the same picture up to rounding


def measure_tolerance(features: Tensor, labels: Tensor, rows: int = 4000) -> float:
    """The length in feature space within which two queries count as the same picture sent again.

    It is half of the distance that all but one in a hundred images keep from the nearest other image of their predicted
    class.
    """
    # Evenly spread rows, not the first ones, since data may be sorted by class.
    spread = torch.linspace(0, len(labels) - 1, min(rows, len(labels))).long().to(labels.device)
    features, labels = features[spread].double(), labels[spread]
    nearest, distances = [], []
    for k in labels.bincount().nonzero().flatten():
        same = features[labels == k]
        if len(same) > 1:
            apart = torch.cdist(same, same)
            distances.append(apart[apart > 0])
            nearest.append(apart.fill_diagonal_(torch.inf).amin(1))
    usual = torch.cat(distances).median().item() if distances and len(torch.cat(distances)) else 0.0
    nearest_all = torch.cat(nearest) if nearest else features.new_empty(0)
    nearest_all = nearest_all[nearest_all > COPY * usual]  # copies say nothing about different images
    if len(nearest_all) == 0:  # nothing to compare: only equal features are the same picture
        return 1e-6 * max(1e-30, features.abs().mean().item())
    return 0.5 * nearest_all.quantile(0.01).item()


def first_seen(features: Tensor, labels: Tensor, tolerance: float) -> Tensor:
    """(n,) the first image of the same predicted class within the tolerance of each: itself, unless it repeats one."""
    first = torch.arange(len(labels), device=labels.device)
    for k in labels.bincount().nonzero().flatten():
        rows = (labels == k).nonzero().flatten()
        near = torch.cdist(features[rows].double(), features[rows].double()) < tolerance
        first[rows] = rows[near.fill_diagonal_(True).byte().argmax(1)]
    return first


def repeats(features: Tensor, labels: Tensor, tolerance: float) -> Tensor:
    """(n,) whether an earlier image of the same predicted class lies within the tolerance."""
    return first_seen(features, labels, tolerance) != torch.arange(len(labels), device=labels.device)


class Memory:
    """The last `CAPACITY` different pictures of a client, by their sketches, and its last answered inputs, by digest.

    A picture that is near a remembered one is not remembered itself: it is compared with the original alone, so small
    steps do not lead from one picture to another unnoticed. The oldest is forgotten first, which never helps a client:
    what is forgotten counts as new. A server has one memory per client, so it consists of small arrays: 34 bytes per
    picture and 8 per digest, and a hash table of the boxes that the first `KEYS` numbers of the sketches lie in. Boxes
    are `SIDE` wide, so whatever is near a number lies in the same box, or in the next one if a border is near.
    """

    CAPACITY = 1024
    BUCKETS = 1024
    KEYS = 4  # more numbers separate sketches better, but there are more boxes to search
    SIDE = 4.0  # of wider boxes fewer must be searched (side 2: always 16; 4: about 5), but each holds more sketches
    __slots__ = ("answered", "digests", "first", "following", "pictures", "sketches")

    def __init__(self) -> None:
        self.pictures = 0  # ever remembered; modulo capacity it is the next slot
        self.answered = 0  # digests ever remembered, likewise
        self.digests = array("q")
        self.sketches = array("f")  # SIZE numbers per slot
        self.first = array("h")  # a slot whose box falls into this bucket, -1: none; empty before the first picture
        self.following = array("h")  # for every slot, the next one in the same bucket; -1: none

    def was_answered(self, digest: int) -> bool:
        """Whether this very input was answered; then `has_near` is true as well, and quicker to ask first."""
        return digest in self.digests

    def add_answered(self, digest: int) -> None:
        """Remember an input that was answered."""
        slot = self.answered % self.CAPACITY
        if slot < len(self.digests):
            self.digests[slot] = digest
        else:
            self.digests.append(digest)
        self.answered += 1

    def has_near(self, sketch: Sketch) -> bool:
        """Whether a picture with nearly this feature was remembered."""
        first, following, sketches, side = self.first, self.following, self.sketches, self.SIDE
        if not first:
            return False
        sides = []
        for value in sketch[: self.KEYS]:
            low, high = (value - 1.0) // side, (value + 1.0) // side
            sides.append((low,) if low == high else (low, high))
        for box in product(*sides):
            slot = first[hash(box) % self.BUCKETS]
            while slot >= 0:
                at = SIZE * (slot + 1)
                for value in reversed(sketch):  # the first numbers last: the box has compared them roughly already
                    at -= 1
                    if not -1.0 < sketches[at] - value < 1.0:
                        break
                else:
                    return True
                slot = following[slot]
        return False

    def add_picture(self, sketch: Sketch) -> array[float] | None:
        """Remember a picture in the next slot; returns the sketch that it replaced, for `drop_picture`."""
        if not self.first:
            self.first = array("h", [-1]) * self.BUCKETS
        slot = self.pictures % self.CAPACITY
        self.pictures += 1
        rounded = array("f", sketch)  # as stored: `_unlink` must compute the same bucket from it
        if slot == len(self.following):
            self.sketches.extend(rounded)
            self.following.append(-1)
            self._link(slot)
            return None
        replaced = self._sketch(slot)
        self._replace(slot, rounded)
        return replaced

    def drop_picture(self, replaced: array[float] | None) -> None:
        """Forget the newest picture and remember the one that it replaced again."""
        self.pictures -= 1
        slot = self.pictures % self.CAPACITY
        if replaced is not None:
            self._replace(slot, replaced)
            return
        self._unlink(slot)
        del self.sketches[SIZE * slot :], self.following[slot:]

    def _replace(self, slot: int, sketch: array[float]) -> None:
        self._unlink(slot)
        self.sketches[SIZE * slot : SIZE * (slot + 1)] = sketch
        self._link(slot)

    def _sketch(self, slot: int) -> array[float]:
        return self.sketches[SIZE * slot : SIZE * (slot + 1)]

    def _bucket(self, slot: int) -> int:
        side, at = self.SIDE, SIZE * slot
        return hash(tuple([v // side for v in self.sketches[at : at + self.KEYS]])) % self.BUCKETS

    def _link(self, slot: int) -> None:
        bucket = self._bucket(slot)
        self.following[slot], self.first[bucket] = self.first[bucket], slot

    def _unlink(self, slot: int) -> None:
        """Take a slot out of its bucket."""
        bucket, following = self._bucket(slot), self.following
        other = self.first[bucket]
        if other == slot:
            self.first[bucket] = following[slot]
            return
        while following[other] != slot:
            other = following[other]
        following[other] = following[slot]

    def picture(self, slot: int) -> Sketch:
        """The sketch in a slot."""
        return tuple(self._sketch(slot))
