"""The rows that a ledger judges: made and checked in one place, so that every store may trust them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from queen.errors import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    LimitsError,
    NotFiniteError,
    OptionError,
    ShapeError,
)
from queen.options import Group, Limits
from queen.sentinel.bets import Bets

MAX_CLIENT_BYTES = 256
MAX_LABEL = 2**31 - 1
HOMES = 16  # groups of a kind whose alarms are enforced on one client: the first that it asked from


@dataclass(frozen=True)
class Scope:
    """One account that a query is charged to: its client's own, or that of a group the client belongs to.

    `enforce` says whether the alarm has consequences.
    """

    name: str
    group: bool
    limits: Limits
    enforce: bool = False

    @property
    def stage(self) -> tuple[bool, str]:
        """When this account is asked: clients first, then groups by kind, the part of their name before the colon."""
        return self.group, self.kind

    @property
    def kind(self) -> str:
        """Of a group, the part of its name before the colon."""
        return self.name.partition(":")[0] if self.group else ""


@dataclass(frozen=True)
class Rows:
    """Checked queries in arrival order, as plain Python numbers: client index, label and point of every row.

    Points are relative to the class's disc. `scopes` holds, for every client, its own scope and then its groups' in
    order of kind, at most one per kind; so all scopes of one stage are different accounts, whatever the batch.
    `bets` is what the sentinel adds; without it the ledger decides by coverage alone. Only `make_rows` makes these.
    """

    clients: tuple[str, ...]
    owner: list[int]
    labels: list[int]
    x: list[float]
    y: list[float]
    scopes: tuple[tuple[Scope, ...], ...]
    bets: Bets | None = None


def bar_of(bar: float, *, group: bool) -> float:
    """The sum of purses that accuses a client, or the one that accuses a group.

    A group needs `HOMES` times as much: a client is denied by the alarm of any of its homes, and so many alarms, each
    as many times rarer, together spend no more than one share of alpha, however many groups the client roams through.
    """
    return HOMES * bar if group else bar


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
    clients: tuple[str, ...],
    owner: ArrayLike | None,
    labels: ArrayLike,
    points: ArrayLike,
    limits: Limits,
    *,
    groups: Sequence[Mapping[str, Group]] | None = None,
    bets: Bets | None = None,
) -> Rows:
    """Check a batch: labels (n,), points (n, 2); `owner` (n,) indexes `clients` (None: all rows are the first's).

    `groups` holds, for every client, the groups it belongs to by name, at most one per kind; the kind of "tenant:7" is
    "tenant".
    """
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
    x, y = point.T.tolist()
    if not all(map(isfinite, x)) or not all(map(isfinite, y)):
        raise NotFiniteError("points must be finite")
    if bets is not None and not all(map(isfinite, chain.from_iterable(bets.sketches))):
        raise NotFiniteError("features must be finite")
    listed = label.tolist()
    low, high = min(listed), max(listed)
    if low < 0 or high > MAX_LABEL:
        raise LabelError(f"labels must lie between 0 and {MAX_LABEL}, got {low} to {high}")
    _check_limits(limits, high)
    scopes = tuple(_scopes(client, limits, groups[i] if groups else {}, bets, high) for i, client in enumerate(clients))
    return Rows(clients, _owners(owner, len(listed), len(clients)), listed, x, y, scopes, bets)


def _scopes(
    client: str, limits: Limits, groups: Mapping[str, Group], bets: Bets | None, high: int
) -> tuple[Scope, ...]:
    enforce = bets is not None and bets.enforce
    own = Scope(client, group=False, limits=limits, enforce=enforce)
    if not groups:
        return (own,)
    kinds = [check_client(name).partition(":")[0] for name in groups]
    if len(set(kinds)) != len(kinds):
        raise OptionError(f"expected at most one group of each kind, got {sorted(groups)}")
    shared = [
        Scope(name, group=True, limits=group.limits, enforce=enforce and group.enforce_alarm)
        for _, (name, group) in sorted(zip(kinds, groups.items(), strict=True), key=itemgetter(0))
    ]
    for scope in shared:
        _check_limits(scope.limits, high)
    return (own, *shared)


def _check_limits(limits: Limits, high: int) -> None:
    if not isinstance(limits, Limits):
        raise LimitsError(f"limits must be queen.types.Limits, got {type(limits).__name__}")
    if isinstance(limits.radius, tuple) and high >= len(limits.radius):
        raise LabelError(f"limits have radii for {len(limits.radius)} classes, got label {high}")


def _owners(owner: ArrayLike | None, rows: int, clients: int) -> list[int]:
    if owner is None:
        return [0] * rows
    indices = np.asarray(owner)
    if indices.shape != (rows,):
        raise ShapeError(f"expected an owner for each of {rows} rows, got shape {indices.shape}")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"expected integer owners, got {indices.dtype}")
    listed: list[int] = indices.tolist()
    if min(listed) < 0 or max(listed) >= clients:
        raise ClientError(f"owners must lie between 0 and {clients - 1}, got {min(listed)} to {max(listed)}")
    return listed
