"""A few secret numbers by which a query is recognised when it comes again, exactly or nearly."""

from __future__ import annotations

import hashlib
from array import array

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

    The oldest is forgotten first, which never helps a client: a forgotten query counts as new. Two small arrays, 40
    bytes a query, since a server keeps them for every client; and how many sketches lie in each square of their first
    two numbers, which nearly always tells that none is near.
    """

    CAPACITY = 1024
    __slots__ = ("count", "digests", "sketches", "squares")

    def __init__(self) -> None:
        self.count = 0  # distinct queries ever remembered; count modulo capacity is the next slot
        self.digests = array("q")
        self.sketches = array("f")  # SIZE numbers a slot
        self.squares: dict[tuple[int, int], int] = {}

    @property
    def size(self) -> int:
        """Queries remembered now."""
        return len(self.digests)

    def has_same(self, digest: int) -> bool:
        """Whether this very input was remembered; it is near then, which is quicker to see."""
        return digest != NO_DIGEST and digest in self.digests

    def has_near(self, sketch: Sketch) -> bool:
        """Whether a query with nearly this feature was remembered."""
        x, y = sketch[0], sketch[1]
        left, right, low, high = int((x - 1.0) // 2), int((x + 1.0) // 2), int((y - 1.0) // 2), int((y + 1.0) // 2)
        squares = self.squares
        if not (
            (left, low) in squares or (left, high) in squares or (right, low) in squares or (right, high) in squares
        ):
            return False
        known = np.frombuffer(self.sketches, np.float32).astype(np.float64).reshape(-1, SIZE)
        return bool((np.abs(known - np.array(sketch)) < 1.0).all(1).any())

    def add(self, digest: int, sketch: Sketch) -> None:
        """Remember a query in the next slot."""
        slot = self.count % self.CAPACITY
        if slot < len(self.digests):
            self._leave(_square(self.slot(slot)[1]))
            self.digests[slot] = digest
            self.sketches[SIZE * slot : SIZE * (slot + 1)] = array("f", sketch)
        else:
            self.digests.append(digest)
            self.sketches.extend(sketch)
        self.count += 1
        square = _square(sketch)
        self.squares[square] = self.squares.get(square, 0) + 1

    def _leave(self, square: tuple[int, int]) -> None:
        self.squares[square] -= 1
        if self.squares[square] == 0:
            del self.squares[square]

    def slot(self, number: int) -> tuple[int, Sketch]:
        """What a slot holds."""
        return self.digests[number], tuple(self.sketches[SIZE * number : SIZE * (number + 1)])


def _square(sketch: Sketch) -> tuple[int, int]:
    return int(sketch[0] // 2), int(sketch[1] // 2)
