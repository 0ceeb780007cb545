"""The sentinel's judgement, read aloud from method.md: lists, pairs compared one by one, wealth by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queen.ledger.base import Budget
from queen.ledger.rows import Rows, make_rows
from queen.options import Group, Limits
from queen.sentinel.evidence import Bets


@dataclass(frozen=True)
class Query:
    """One query as a ledger is told of it."""

    client: str
    label: int
    point: tuple[float, float]
    digest: int
    sketch: tuple[float, ...]
    bet: tuple[float, ...] = ()


@dataclass(frozen=True)
class Rules:
    """What does not change from query to query; `groups` holds the groups of every client by name."""

    limits: Limits
    size: int = 1
    form: str = "mixture"
    bar: float = math.inf
    enforce: bool = True
    groups: Mapping[str, Mapping[str, Group]] = field(default_factory=dict)

    def rows(self, queries: Sequence[Query]) -> Rows:
        """The batch that a ledger judges."""
        clients = tuple(dict.fromkeys(q.client for q in queries))
        bets = Bets(
            factors=[q.bet for q in queries],
            digests=[q.digest for q in queries],
            sketches=[q.sketch for q in queries],
            form=self.form,
            size=self.size,
            bar=self.bar,
            enforce=self.enforce,
            test=self.size,
        )
        return make_rows(
            clients,
            [clients.index(q.client) for q in queries],
            [q.label for q in queries],
            [q.point for q in queries],
            self.limits,
            groups=[self.groups.get(client, {}) for client in clients],
            bets=bets,
        )


class Account:
    """One client or one group."""

    def __init__(self) -> None:
        self.queries = 0
        self.placed = 0
        self.wealth: list[float] = []
        self.accused = False
        self.allowed = False
        self.extra = 0
        self.budget: Budget | None = None
        self.points: dict[int, list[tuple[float, float]]] = {}
        self.cqs: dict[int, float] = {}
        self.seen: list[tuple[int | None, tuple[float, ...]]] = []  # oldest first; None: it got no honest answer

    def verdict(self, label: int, point: tuple[float, float], limits: Limits) -> str:
        (x, y), rho = point, radius_of(limits, label)
        if not x * x + y * y < 1.0:
            return "A"
        for rx, ry in self.points.get(label, []):
            if (x - rx) * (x - rx) + (y - ry) * (y - ry) < rho * rho:
                return "D"
        return "B" if self.cqs.get(label, 0.0) > limits.threshold else "C"

    def record(self, label: int, point: tuple[float, float], limits: Limits) -> None:
        (x, y), rho = point, radius_of(limits, label)
        sqs = 0.5 * math.erfc(math.sqrt(x * x + y * y) - 1.0)
        area = rho * rho * max(sqs * sqs, 0.25 * (1 + 1e-12))
        self.points.setdefault(label, []).append(point)
        self.cqs[label] = self.cqs.get(label, 0.0) + area

    def was_answered(self, query: Query) -> bool:
        return any(digest == query.digest and near(query.sketch, sketch) for digest, sketch in self.seen)

    def knows(self, query: Query) -> bool:
        return any(near(query.sketch, sketch) for _, sketch in self.seen)

    def bet(self, factors: Sequence[float], form: str) -> float:
        """Place a bet; returns the sum of the wealth after it."""
        if len(self.wealth) != len(factors):
            self.placed, self.wealth = 0, [0.0] * len(factors)
        self.placed += 1
        t, grown = self.placed, []
        for a, factor in zip(self.wealth, factors, strict=True):
            if form == "mixture":
                weight = 0.5 / (t * (t + 1))
                if t == 1:
                    weight += 0.5
                grown.append((a + weight) * factor)
            elif form == "product":
                grown.append(factor if t == 1 else a * factor)
            else:
                grown.append((a if a > 1 else 1.0) * factor)
        self.wealth = grown
        total = 0.0
        for a in grown:  # one after the other: `sum` would round otherwise
            total += a
        return total

    def mean_wealth(self) -> float:
        return sum(self.wealth) / len(self.wealth) if self.wealth else 0.0


def near(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) < 1 for a, b in zip(one, other, strict=True))


def radius_of(limits: Limits, label: int) -> float:
    return limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius


def granted(budget: Budget, limits: Limits) -> Limits:
    threshold = limits.threshold if budget.threshold is None else budget.threshold
    extra = limits.extra_answers if budget.extra_answers is None else budget.extra_answers
    return Limits(radius=limits.radius, threshold=threshold, extra_answers=extra)


class Watcher:
    """A ledger that judges one query at a time; `capacity` is how many queries of a client it keeps in mind."""

    def __init__(self, rules: Rules, capacity: int) -> None:
        self.rules = rules
        self.capacity = capacity
        self.accounts: dict[tuple[bool, str], Account] = {}
        self.events: list[tuple] = []

    def account(self, name: str, *, group: bool = False) -> Account:
        return self.accounts.setdefault((group, name), Account())

    def ask(self, query: Query) -> tuple[str, bool, bool, bool]:
        """Letter, spent, alarmed and trusted. The client's own account is asked first, then its groups' by kind; each
        decides and charges for itself, and what one denies the next never hears of."""
        rules = self.rules
        own = self.account(query.client)
        members = [(query.client, False, rules.limits, rules.enforce)]
        members += [
            (name, True, group.limits, rules.enforce and group.enforce_alarm)
            for name, group in sorted(rules.groups.get(query.client, {}).items(), key=lambda g: g[0].split(":")[0])
        ]
        letters = []
        for name, is_group, usual, enforce in members:
            account = self.account(name, group=is_group)
            limits = granted(account.budget, usual) if account.budget else usual
            letter, said = self._ask_one(query, name, is_group, account, limits, enforce and not account.allowed)
            letters.append(letter)
            if said != "honest" or account.allowed:
                break
        return letters[0], said == "spent", said == "accused" or own.accused, own.allowed

    def _ask_one(
        self, query: Query, name: str, is_group: bool, account: Account, limits: Limits, enforce: bool
    ) -> tuple[str, str]:
        """One account's letter, and whether it says honest, spent or accused."""
        account.queries += 1
        letter = account.verdict(query.label, query.point, limits)
        if account.accused and enforce:
            return letter, "accused"
        answered, known = account.was_answered(query), account.knows(query)
        said, extra = "honest", letter in "AD"
        over = account.cqs.get(query.label, 0.0) > limits.threshold
        over = over or (extra and account.extra >= limits.extra_answers)
        if over and not answered and not account.allowed:
            said = "spent"
        if query.bet and not known and not account.accused:
            account.accused = account.bet(query.bet, self.rules.form) >= self.rules.bar
            if account.accused:
                self._note("alarm", name, is_group, client=query.client)
                said = "accused" if enforce else said
        if said != "honest":
            if not known:
                self._remember(account, None, query)
            return letter, said
        if letter == "C":
            account.record(query.label, query.point, limits)
        if not answered:
            account.extra += extra
            self._remember(account, query.digest, query)
        return letter, said

    def _remember(self, account: Account, digest: int | None, query: Query) -> None:
        account.seen = [*account.seen, (digest, query.sketch)][-self.capacity :]

    def _note(self, what: str, name: str, is_group: bool, *, client: str = "", actor: str = "") -> None:
        of = self.account(name, group=is_group)
        self.events.append((what, name, is_group, client, of.mean_wealth(), of.queries, dict(of.cqs), actor))

    def pardon(self, client: str, actor: str) -> None:
        self._note("pardon", client, False, actor=actor)
        account = self.account(client)
        account.accused, account.placed, account.wealth = False, 0, []

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        self._note("allow" if allowed else "disallow", client, False, actor=actor)
        self.account(client).allowed = allowed

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        self._note("budget", client, False, actor=actor)
        self.account(client).budget = budget

    def standings(self) -> list[tuple]:
        """Everyone who asked or was given something by an operator; the highest wealth first."""
        found = [
            (name, group, a.queries, a.mean_wealth(), a.accused, a.allowed, a.extra, a.budget, dict(a.cqs))
            for (group, name), a in self.accounts.items()
            if a.queries or a.allowed or a.budget
        ]
        return sorted(found, key=lambda s: (-s[3], s[1], s[0]))
