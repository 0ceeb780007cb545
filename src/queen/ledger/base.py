"""The protocol every ledger follows, and the rows it judges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queen.core.sensitivity import Floats
from queen.types import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    Limits,
    LimitsError,
    NotFiniteError,
    ShapeError,
    Verdict,
)

MAX_CLIENT_BYTES = 256
MAX_LABEL = 2**31 - 1
LETTERS = {verdict.value: verdict for verdict in Verdict}


@dataclass(frozen=True)
class Rows:
    """Checked queries in arrival order, as plain Python numbers: client index, label and point of every row.

    Points are relative to the class's disc. Made by `make_rows`, never by hand.
    """

    clients: tuple[str, ...]
    owner: list[int]
    labels: list[int]
    x: list[float]
    y: list[float]
    limits: Limits


@dataclass(frozen=True)
class Judgement:
    """What the ledger decided: one letter a row, and whether the row's class was spent before it came."""

    letters: str
    spent: NDArray[np.bool_]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The letters as `Verdict`s."""
        return tuple(LETTERS[letter] for letter in self.letters)


class Ledger(Protocol):
    """Judges rows in arrival order and remembers; several clients may mix in one call."""

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge all rows and record the fresh ones, or raise `LedgerError` and record nothing."""
        ...

    def judge(self, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """The one-client case: labels (n,), points (n, 2) relative to the class disc."""
        ...

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class this client has touched."""
        ...

    def records(self, client: str) -> dict[int, Floats]:
        """The recorded points (m, 2) of every class this client has touched, oldest first."""
        ...

    def clients(self) -> Iterable[str]:
        """Names of all clients with at least one record."""
        ...

    def close(self) -> None:
        """Give back files and connections."""
        ...


class OneClient:
    """Gives every ledger `judge` as the one-client case of its `judge_rows`."""

    def judge(self: Ledger, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """Judge the rows of one client: labels (n,), points (n, 2) relative to the class disc."""
        return self.judge_rows(make_rows((client,), None, labels, points, limits))


def check_client(client: object) -> str:
    """A client is a non-empty string of at most 256 bytes without NUL."""
    if not isinstance(client, str):
        raise ClientError(f"client must be a string, got {type(client).__name__}")
    try:
        size = len(client.encode())
    except UnicodeEncodeError as error:
        raise ClientError("client must be valid Unicode text") from error
    if not 0 < size <= MAX_CLIENT_BYTES or "\0" in client:
        raise ClientError(f"client must have 1 to {MAX_CLIENT_BYTES} bytes and no NUL, got {size} bytes")
    return client


def make_rows(
    clients: tuple[str, ...], owner: ArrayLike | None, labels: ArrayLike, points: ArrayLike, limits: Limits
) -> Rows:
    """Check a batch: labels (n,), points (n, 2); `owner` (n,) indexes `clients` (None: all rows are the first's)."""
    for client in clients:
        check_client(client)
    if not clients or len(set(clients)) != len(clients):
        raise ClientError(f"expected at least one client and none twice, got {len(clients)}")
    try:
        label, point = np.asarray(labels), np.asarray(points)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"expected arrays of labels and points: {error}") from error
    if label.size == 0:
        raise EmptyBatchError("expected at least one query, got an empty batch")
    if label.ndim != 1 or point.shape != (len(label), 2):
        raise ShapeError(f"expected labels (n,) and points (n, 2), got {label.shape} and {point.shape}")
    if label.dtype.kind not in "iu" or point.dtype.kind != "f":
        raise DtypeError(f"expected integer labels and float points, got {label.dtype} and {point.dtype}")
    point = point.astype(np.float64, copy=False)
    x, y = point[:, 0].tolist(), point[:, 1].tolist()
    if not all(map(isfinite, x)) or not all(map(isfinite, y)):
        raise NotFiniteError("points must be finite")
    listed = label.tolist()
    _check_labels(min(listed), max(listed), limits)
    return Rows(clients, _owners(owner, len(listed), len(clients)), listed, x, y, limits)


def _check_labels(low: int, high: int, limits: Limits) -> None:
    if low < 0 or high > MAX_LABEL:
        raise LabelError(f"labels must lie between 0 and {MAX_LABEL}, got {low} to {high}")
    if not isinstance(limits, Limits):
        raise LimitsError(f"limits must be queen.types.Limits, got {type(limits).__name__}")
    if isinstance(limits.radius, tuple) and high >= len(limits.radius):
        raise LabelError(f"limits have radii for {len(limits.radius)} classes, got label {high}")


def _owners(owner: ArrayLike | None, rows: int, clients: int) -> list[int]:
    if owner is None:
        return [0] * rows
    who = np.asarray(owner)
    if who.shape != (rows,):
        raise ShapeError(f"expected an owner for each of {rows} rows, got shape {who.shape}")
    if who.dtype.kind not in "iu":
        raise DtypeError(f"expected integer owners, got {who.dtype}")
    listed: list[int] = who.tolist()
    if min(listed) < 0 or max(listed) >= clients:
        raise ClientError(f"owners must lie between 0 and {clients - 1}, got {min(listed)} to {max(listed)}")
    return listed
