"""Clients and groups as an operator sees them: ranked, searched, and each beside its limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from math import inf
from typing import Any

from queen.bundle.bundle import Bundle
from queen.ledger import Standing
from queen.ledger.rows import bar_of
from queen.options import Limits

MAX_ACCOUNTS = 20_000  # that are in memory at once
MAX_RANKED = 1000  # of more than that, only the first by each order stay
PAGE = 1000  # accounts after which a reader makes room for others


@dataclass(frozen=True)
class Account:
    """A client or group, and how far it is with the class that it has covered most."""

    standing: Standing
    share: float  # what counts of CQS over the threshold; infinite if the threshold is 0
    label: int | None  # that class; None if it has covered nothing
    budget: tuple[str, ...] = ()  # which of its budgets are low or spent, as in NOTICES

    @property
    def is_spent(self) -> bool:
        """Whether it is refused some answers for want of budget."""
        return any(word.endswith("spent") for word in self.budget)


class Accounts:
    """All clients and groups as they were when they were read; if there are too many, only the first by each order."""

    def __init__(self, bundle: Bundle, now: int) -> None:
        self.at, self._now = time.time(), now
        self.complete = True
        self.totals = {"clients": 0, "groups": 0, "alarmed": 0, "spent": 0}
        self._bundle = bundle
        self._accounts: dict[tuple[bool, str], Account] = {}

    @property
    def total(self) -> int:
        """How many there are."""
        return self.totals["clients"] + self.totals["groups"]

    @classmethod
    def read(cls, standings: Iterable[Standing], bundle: Bundle, now: int) -> Accounts:
        """Read all of them at the ledger's time; if they are many, at half speed: others need the processor too."""
        accounts = cls(bundle, now)
        last = time.monotonic()
        for number, standing in enumerate(standings, 1):
            accounts.put(standing)
            if number % PAGE == 0:
                time.sleep(min(1.0, time.monotonic() - last))
                last = time.monotonic()
        return accounts

    def put(self, standing: Standing) -> None:
        """Add a client or group, or replace what was known of it."""
        key = standing.group, standing.name
        before = self._accounts.get(key)
        if before is None:
            self.totals["groups" if standing.group else "clients"] += 1
        account = self._accounts[key] = _account(standing, self._bundle, self._now)
        self.totals["alarmed"] += standing.alarmed - (before is not None and before.standing.alarmed)
        self.totals["spent"] += account.is_spent - (before is not None and before.is_spent)
        if len(self._accounts) > MAX_ACCOUNTS:
            self.complete = False
            first = {id(a): a for order in ORDERS for a in self.ranked(order, "", MAX_RANKED)}
            self._accounts = {(a.standing.group, a.standing.name): a for a in first.values()}

    def ranked(self, order: str, search: str, limit: int) -> list[Account]:
        """The first `limit` of those whose name contains `search`, by wealth, coverage or queries."""
        wanted = search.casefold()
        accounts = list(self._accounts.values())  # another thread may add one meanwhile
        matches = (account for account in accounts if wanted in account.standing.name.casefold())
        return nsmallest(limit, matches, key=ORDERS[order])


ORDERS: Mapping[str, Callable[[Account], tuple[float, bool, str]]] = {
    "wealth": lambda a: (-a.standing.wealth, a.standing.group, a.standing.name),
    "coverage": lambda a: (-a.share, a.standing.group, a.standing.name),
    "queries": lambda a: (-a.standing.queries, a.standing.group, a.standing.name),
}


def limits_of(standing: Standing, bundle: Bundle) -> Limits:
    """The limits of a client or group: its own if it has some, else the bundle's."""
    if standing.group:
        group = bundle.sentinel.groups.get(standing.name.partition(":")[0])
        return bundle.limits if group is None else group.limits
    return bundle.limits if standing.budget is None else standing.budget.over(bundle.limits)


def radius_of(limits: Limits, label: int) -> float:
    """The radius of a query in this class."""
    return limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius


def _account(standing: Standing, bundle: Bundle, now: int) -> Account:
    limits = limits_of(standing, bundle)
    label, used = max(standing.covered(limits, now).items(), key=lambda item: item[1], default=(None, 0.0))
    share = 0.0 if label is None else _share(used, limits.class_allowance.amount)
    return Account(standing, share, label, standing.short_of(limits, now) if bundle.policy == "sentinel" else ())


def _share(used: float, threshold: float) -> float:
    return used / threshold if threshold > 0 else inf


def account_facts(
    standing: Standing, bundle: Bundle, now: int, bar: float | None, keys: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A client or group and its most covered class, as JSON; the other classes are in `coverage_facts`.

    `now` is the ledger's time; `bar` the wealth that accuses a client, or None if nobody can be accused; a group needs
    more. `extra_answers` are all there ever were, `extra_used` those that count, of `extra_limit`.
    """
    facts, limits, account = asdict(standing), limits_of(standing, bundle), _account(standing, bundle, now)
    for name in ("coverage", "class_usage"):
        del facts[name]
    used, most = standing.extra_used(limits, now), int(limits.extra_allowance.amount)
    return facts | {
        "bar": None if bar is None else bar_of(bar, group=standing.group),
        "extra_used": used,
        "extra_left": max(0, most - used),
        "extra_limit": most,
        "extra_allowance": limits.extra_answers,
        "extra_renews": standing.extra_renews(limits, now),
        "class_allowance": limits.threshold,
        "classes_renew": standing.classes_renew(limits, now),
        "classes_end": limits.spends_classes,
        "budget_state": account.budget,
        "most": None if account.label is None else _class_facts(standing, bundle, account.label, now),
        "keys": list(keys),
    }


def coverage_facts(standing: Standing, bundle: Bundle, now: int) -> list[dict[str, Any]]:
    """The coverage of every class that a client or group has touched, as JSON, the most covered first."""
    covered = standing.covered(limits_of(standing, bundle), now)
    most_first = sorted(covered.items(), key=lambda item: (-item[1], item[0]))
    return [_class_facts(standing, bundle, label, now) for label, _ in most_first]


def _class_facts(standing: Standing, bundle: Bundle, label: int, now: int) -> dict[str, Any]:
    """What counts of CQS beside its threshold. A ledger may hold classes of an older model, unknown to this one."""
    limits = limits_of(standing, bundle)
    used, threshold = standing.covered(limits, now)[label], limits.class_allowance.amount
    share = _share(used, threshold)
    return {
        "label": label,
        "name": bundle.name_of(label) if label < bundle.geometry.classes else str(label),
        "cqs": standing.coverage[label],
        "used": used,
        "threshold": threshold,
        "share": share if share < inf else None,
        "spent": used > threshold,
    }
