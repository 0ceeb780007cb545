"""Clients and groups as an operator sees them: ranked, searched, and each beside its limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from typing import Any

from queen.bundle.bundle import Bundle
from queen.ledger import Standing
from queen.options import Limits

KEPT = 20_000  # accounts at most that are held at once
RANKED = 1000  # of more, the first by each order
PAGE = 1000  # accounts after which a reader makes room for others


@dataclass(frozen=True)
class Account:
    """A client or group, and how much of the class it has seen most of it may still see."""

    standing: Standing
    share: float  # CQS over the threshold; infinite where nothing may be seen
    label: int | None  # of that class


class Accounts:
    """All clients and groups, as they were when they were read; of very many, only the first by each order."""

    def __init__(self, bundle: Bundle) -> None:
        self.at = time.time()
        self.complete = True
        self.totals = {"clients": 0, "groups": 0, "alarmed": 0}
        self._bundle = bundle
        self._kept: dict[tuple[bool, str], Account] = {}

    @property
    def total(self) -> int:
        """How many there are."""
        return self.totals["clients"] + self.totals["groups"]

    @classmethod
    def read(cls, standings: Iterable[Standing], bundle: Bundle) -> Accounts:
        """Go through all of them, at half speed when they are many: others need the processor too."""
        found = cls(bundle)
        last = time.monotonic()
        for number, standing in enumerate(standings, 1):
            found.put(standing)
            if number % PAGE == 0:
                time.sleep(min(1.0, time.monotonic() - last))
                last = time.monotonic()
        return found

    def put(self, standing: Standing) -> None:
        """Add one, or replace it by how it stands now."""
        key = standing.group, standing.name
        before = self._kept.get(key)
        if before is None:
            self.totals["groups" if standing.group else "clients"] += 1
        self.totals["alarmed"] += standing.alarmed - (before is not None and before.standing.alarmed)
        self._kept[key] = _account(standing, self._bundle)
        if len(self._kept) > KEPT:
            self.complete = False
            first = {id(a): a for order in ORDERS for a in self.ranked(order, "", RANKED)}
            self._kept = {(a.standing.group, a.standing.name): a for a in first.values()}

    def ranked(self, order: str, search: str, limit: int) -> list[Account]:
        """The first `limit` of those whose name contains `search`, by wealth, coverage or queries."""
        wanted = search.casefold()
        every = list(self._kept.values())  # another thread may add one meanwhile
        chosen = (found for found in every if wanted in found.standing.name.casefold())
        return nsmallest(limit, chosen, key=ORDERS[order])


ORDERS: Mapping[str, Callable[[Account], tuple[float, bool, str]]] = {
    "wealth": lambda a: (-a.standing.wealth, a.standing.group, a.standing.name),
    "coverage": lambda a: (-a.share, a.standing.group, a.standing.name),
    "queries": lambda a: (-a.standing.queries, a.standing.group, a.standing.name),
}


def limits_of(standing: Standing, bundle: Bundle) -> Limits:
    """The limits that hold for a client or group."""
    if standing.group:
        group = bundle.sentinel.groups.get(standing.name.partition(":")[0])
        return bundle.limits if group is None else group.limits
    return bundle.limits if standing.budget is None else standing.budget.over(bundle.limits)


def radius_of(limits: Limits, label: int) -> float:
    """The radius of a class's queries."""
    return limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius


def _account(standing: Standing, bundle: Bundle) -> Account:
    if not standing.coverage:
        return Account(standing, 0.0, None)
    label, cqs = max(standing.coverage.items(), key=lambda item: item[1])
    return Account(standing, _share(cqs, limits_of(standing, bundle).threshold), label)


def _share(cqs: float, threshold: float) -> float:
    return cqs / threshold if threshold > 0 else inf


def bar_of(bundle: Bundle) -> float | None:
    """The wealth that accuses; None unless the policy is the sentinel's."""
    return 1 / bundle.sentinel.share if bundle.policy == "sentinel" else None


def show(standing: Standing, bundle: Bundle, keys: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One line of the list of accounts, as JSON."""
    limits, found = limits_of(standing, bundle), _account(standing, bundle)
    most = None
    if found.label is not None:
        most = _class(bundle, found.label, standing.coverage[found.label], limits)
    return {
        "name": standing.name,
        "group": standing.group,
        "queries": standing.queries,
        "wealth": standing.wealth,
        "bar": bar_of(bundle),
        "alarmed": standing.alarmed,
        "allowed": standing.allowed,
        "extra_answers": standing.extra_answers,
        "extra_limit": limits.extra_answers,
        "budget": None if standing.budget is None else dict(vars(standing.budget)),
        "most": most,
        "keys": list(keys),
    }


def show_classes(standing: Standing, bundle: Bundle) -> list[dict[str, Any]]:
    """The coverage of every class it has touched, as JSON, the most covered first."""
    limits = limits_of(standing, bundle)
    most_first = sorted(standing.coverage.items(), key=lambda item: (-item[1], item[0]))
    return [_class(bundle, label, cqs, limits) for label, cqs in most_first]


def _class(bundle: Bundle, label: int, cqs: float, limits: Limits) -> dict[str, Any]:
    """CQS beside its threshold; a class that an older model had may be unknown to this one."""
    share = _share(cqs, limits.threshold)
    return {
        "label": label,
        "name": bundle.name_of(label) if label < bundle.geometry.classes else str(label),
        "cqs": cqs,
        "threshold": limits.threshold,
        "share": share if share < inf else None,
        "spent": cqs > limits.threshold,
    }
