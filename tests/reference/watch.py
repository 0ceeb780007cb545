"""The sentinel's judgement, read aloud from method.md: lists, pairs compared one by one, wealth purse by purse."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from queen.ledger.rows import Rows, make_rows
from queen.ledger.words import Budget
from queen.options import Group, Limits
from queen.sentinel.bets import Bets, Test
from tests.reference.windows import HOUR, LONGEST, Uses, parts

Ranks = tuple[int, int, bool]  # of one score: the rank to bet with, the one to remember, and whether its twin bets

STAKES = (0.2, 0.6)
CALIBRATED = ((19, 5), (40, 12), (7, 2))  # calibration images of a class, and how many of them exceed the twin's floor
REMEMBERED_TESTS = 2
OUTLASTED = 16  # tests that came and went while an older one was not used: the next takes its place, however rich it is
HOMES = (
    16  # groups of a kind whose alarms are enforced on one client; a group needs so many times the wealth of a client
)


@dataclass(frozen=True)
class Query:
    """One query as a ledger hears of it; without ranks its class has no calibration images, and nothing is bet."""

    client: str
    label: int
    point: tuple[float, float]
    digest: int
    sketch: tuple[float, ...]
    bet: tuple[Ranks, ...] = ()


@dataclass(frozen=True)
class Lane:
    """One bet of a query on one shape: n + 1, the sum of q over all ranks, q of the rank to bet with, to remember."""

    size: int
    total: int
    bet: int
    count: int


NOTHING = Lane(0, 1, 0, 0)


def top(share: float, n: int) -> list[int]:
    """All or nothing on a share of the ranks 0..n."""
    return [1 if rank < max(1, math.ceil(share * (n + 1))) else 0 for rank in range(n + 1)]


def power(n: int) -> list[int]:
    """One over the square root of the rank's share, in whole sixteenths."""
    return [math.isqrt(16 * 16 * (n + 1) // (rank + 1)) for rank in range(n + 1)]


def lanes_of(query: Query, scores: int) -> list[Lane]:
    """The lanes of all scores: three shapes of the score each, then two of its twin."""
    if not query.bet:
        return [NOTHING] * 5 * scores
    n, above_floor = CALIBRATED[query.label % len(CALIBRATED)]
    lanes = []
    for rank, remembered, above in query.bet:
        for numbers in (top(0.1, n), top(0.3, n), power(n)):
            lanes.append(Lane(n + 1, sum(numbers), numbers[min(rank, n)], numbers[min(remembered, n)]))
        for numbers in (top(0.1, above_floor), top(0.35, above_floor)):
            bet, count = numbers[min(rank, above_floor)], numbers[min(remembered, above_floor)]
            lanes.append(Lane(above_floor + 1 if above else 0, sum(numbers), bet, count))
    return lanes


@dataclass(frozen=True)
class Rules:
    """What does not change from query to query; `groups` holds the groups of every client by name.

    `bar` is the wealth that accuses in any case. With the usual alpha and delta nothing else does, whatever number
    the test gets.
    """

    limits: Limits
    scores: int = 1
    bar: float = math.inf
    enforce: bool = True
    groups: Mapping[str, Mapping[str, Group]] = field(default_factory=dict)
    test: int = 1
    account: str = ""
    alpha: float = 1e9
    delta: float = 1e9
    after_alarm: float = math.inf

    def rows(self, queries: Sequence[Query]) -> Rows:
        """The batch that a ledger judges."""
        clients = tuple(dict.fromkeys(q.client for q in queries))
        lanes = [lanes_of(q, self.scores) for q in queries]
        bets = Bets(
            *(np.array([[getattr(lane, name) for lane in of] for of in lanes]) for name in vars(NOTHING)),
            digests=[q.digest for q in queries],
            sketches=[q.sketch for q in queries],
            test=self.the_test,
            enforce=self.enforce,
            after_alarm=self.after_alarm,
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

    @property
    def the_test(self) -> Test:
        return Test(self.test, self.scores, self.alpha, self.delta, self.account, self.bar)

    def sum_that_accuses(self, number: int) -> float:
        """For the `number`-th test of the account."""
        share = self.alpha * self.delta * 6.0 / (9.869604401089358 * number * number)
        return 10 * self.scores * max(1.0 / share, self.bar)


def single(number: float) -> float:
    """Rounded to the nearest float of four bytes."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.inf


class Wallet:
    """What an account has won in one test: purse by purse, from the formulas."""

    def __init__(self, scores: int) -> None:
        self.purses = [[0.0, 0.0] for _ in range(5 * scores)]  # lane by lane, one purse for each stake
        self.ticks = [0] * (1 + scores)  # of the clock that all scores share, and of every twin's
        self.bets: dict[tuple[int, int], int] = {}  # by clock and class
        self.sums: dict[tuple[int, int], int] = {}  # of q, by lane and class

    def bet(self, label: int, lanes: Sequence[Lane]) -> None:
        ticking = set()
        for i, lane in enumerate(lanes):
            if lane.size == 0:
                continue
            clock = 0 if i % 5 < 3 else 1 + i // 5
            ticking.add(clock)
            time = self.ticks[clock] + 1
            fresh = 0.5 / (time * (time + 1)) + (0.5 if time == 1 else 0.0)
            unit = lane.size / lane.total
            gain = unit * lane.bet
            urn = lane.size + self.bets.get((clock, label), 0)
            mean = max(1.0, unit * (lane.total + self.sums.get((i, label), 0)) / urn)
            for s, stake in enumerate(STAKES):
                factor = ((1 - stake) + stake * gain) / ((1 - stake) + stake * mean)
                self.purses[i][s] = single((self.purses[i][s] + fresh) * factor)
        for clock in ticking:
            self.ticks[clock] += 1
            self.bets[clock, label] = self.bets.get((clock, label), 0) + 1
        for i, lane in enumerate(lanes):
            if lane.size:
                self.sums[i, label] = self.sums.get((i, label), 0) + lane.count

    def best(self) -> float:
        """The largest of the scores' sums."""
        sums = []
        for first in range(0, len(self.purses), 5):
            total = 0.0
            for lane in self.purses[first : first + 5]:  # one after the other: `sum` would round otherwise
                for purse in lane:
                    total += purse
            sums.append(total)
        return max(sums)

    def wealth(self) -> float:
        """As if all other scores had won nothing."""
        return self.best() / (2 * len(self.purses))


class Account:
    """One client or one group."""

    def __init__(self) -> None:
        self.queries = 0
        self.wallets: dict[int, Wallet] = {}  # by test, the one used last at the end
        self.outlasted = 0  # how many others have come and gone since the older test was used
        self.accused = False
        self.after_alarm = 0  # queries that an enforced alarm met
        self.allowed = False
        self.extra = 0
        self.budget: Budget | None = None
        self.homes: dict[str, list[str]] = {}  # by kind
        self.points: dict[int, list[tuple[float, float]]] = {}
        self.cqs: dict[int, float] = {}
        self.pictures: list[tuple[float, ...]] = []  # sketches of what was unlike everything before, oldest first
        self.answered: list[int] = []  # digests, oldest first
        self.extra_uses = Uses()  # while extra answers renew
        self.class_uses: dict[int, Uses] = {}

    def extra_used(self, limits: Limits, now: int) -> float:
        _, period = parts(limits.extra_answers)
        return self.extra_uses.count(period, now) if period else self.extra

    def covered(self, label: int, limits: Limits, now: int) -> float:
        _, period = parts(limits.threshold)
        if period:
            return self.class_uses.get(label, Uses()).count(period, now)
        return self.cqs.get(label, 0.0)

    def is_class_spent(self, label: int, limits: Limits, now: int) -> bool:
        return self.covered(label, limits, now) > parts(limits.threshold)[0]

    def is_spent(self, limits: Limits, now: int) -> bool:
        """Whether there is anything that it lacks."""
        no_extra = self.extra_used(limits, now) >= parts(limits.extra_answers)[0]
        return no_extra or any(self.is_class_spent(label, limits, now) for label in self.points)

    def renews(self, limits: Limits, now: int) -> int | None:
        """The first full hour in which nothing is spent any more; None if there is none."""
        hours = range(now // HOUR + 1, now // HOUR + LONGEST)
        return next((HOUR * hour for hour in hours if not self.is_spent(limits, HOUR * hour)), None)

    def verdict(self, label: int, point: tuple[float, float], limits: Limits, now: int) -> str:
        (x, y), rho = point, radius_of(limits, label)
        if not x * x + y * y < 1.0:
            return "A"
        for rx, ry in self.points.get(label, []):
            if (x - rx) * (x - rx) + (y - ry) * (y - ry) < rho * rho:
                return "D"
        return "B" if self.is_class_spent(label, limits, now) else "C"

    def record(self, label: int, point: tuple[float, float], limits: Limits, now: int) -> None:
        (x, y), rho = point, radius_of(limits, label)
        sqs = 0.5 * math.erfc(math.sqrt(x * x + y * y) - 1.0)
        area = rho * rho * max(sqs * sqs, 0.25 * (1 + 1e-12))
        self.points.setdefault(label, []).append(point)
        self.cqs[label] = self.cqs.get(label, 0.0) + area
        _, period = parts(limits.threshold)
        if period:
            self.class_uses.setdefault(label, Uses()).add(period, area, now)

    def knows(self, query: Query) -> bool:
        return any(near(query.sketch, sketch) for sketch in self.pictures)

    def wallet(self, test: int, scores: int) -> Wallet:
        """That of a test, which becomes the one used last; two are remembered, and a third replaces the poorer."""
        if test in self.wallets:
            if test != list(self.wallets)[-1]:
                self.outlasted = 0
            self.wallets[test] = self.wallets.pop(test)
            return self.wallets[test]
        if len(self.wallets) == REMEMBERED_TESTS:
            older, newer = self.wallets
            if self.wallets[newer].wealth() > self.wallets[older].wealth() or self.outlasted == OUTLASTED:
                del self.wallets[older]
                self.outlasted = 0
            else:
                del self.wallets[newer]
                self.outlasted += 1
        self.wallets[test] = Wallet(scores)
        return self.wallets[test]

    def wealth(self) -> float:
        return max([wallet.wealth() for wallet in self.wallets.values()], default=0.0)


def near(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) < 1 for a, b in zip(one, other, strict=True))


def radius_of(limits: Limits, label: int) -> float:
    return limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius


def granted(budget: Budget, limits: Limits) -> Limits:
    threshold = limits.threshold if budget.threshold is None else budget.threshold
    extra = limits.extra_answers if budget.extra_answers is None else budget.extra_answers
    return Limits(radius=limits.radius, threshold=threshold, extra_answers=extra)


class Watcher:
    """A ledger that judges one query at a time.

    `capacity` is how many pictures, and how many answers, of a client it keeps in mind. `rules` may be exchanged, and
    the time `now` set. `denial` is whose budget did not allow the last query, used how far, of how much, renewing when.
    """

    def __init__(self, rules: Rules, capacity: int = 1024) -> None:
        self.rules = rules
        self.capacity = capacity
        self.accounts: dict[tuple[bool, str], Account] = {}
        self.tests: list[tuple[str, int]] = []
        self.events: list[tuple] = []
        self.now = 0
        self.denial: tuple[str, bool, int, int, int | None, int] | None = None

    def account(self, name: str, *, group: bool = False) -> Account:
        return self.accounts.setdefault((group, name), Account())

    def number_of(self, test: Test) -> int:
        """How many tests of its account came before it, and one more."""
        if (test.account, test.id) not in self.tests:
            self.tests.append((test.account, test.id))
        of_account = [one for account, one in self.tests if account == test.account]
        return of_account.index(test.id) + 1

    def ask(self, query: Query) -> tuple[str, bool, bool, bool, bool, bool]:
        """Letter, spent, alarmed, trusted, repeated and cut off. The client's own account is asked first, then its
        groups' by kind; each decides and charges for itself, and after a denial the rest are not asked."""
        rules, self.denial = self.rules, None
        self.number_of(rules.the_test)
        own = self.account(query.client)
        members = [(query.client, False, rules.limits, rules.enforce and not own.allowed)]
        groups = rules.groups.get(query.client, {})
        for name, group in sorted(groups.items(), key=lambda item: item[0].split(":")[0]):
            enforce, kind = rules.enforce and group.enforce_alarm, name.split(":")[0]
            if enforce:  # the first groups of a kind are the client's homes: no other one's alarm is enforced on it
                homes = own.homes.setdefault(kind, [])
                if name not in homes and len(homes) < HOMES:
                    homes.append(name)
                enforce = name in homes
            members.append((name, True, group.limits, enforce))
        letters, words = [], []
        for name, is_group, usual, enforce in members:
            account = self.account(name, group=is_group)
            limits = granted(account.budget, usual) if account.budget else usual
            letter, word = self._ask_one(query, name, is_group, account, limits, enforce, "repeated" in words)
            letters.append(letter)
            words.append(word)
            if word not in ("honest", "repeated") or account.allowed:
                break
        alarmed = own.accused or bool({"accused", "cut off", "repeated"} & {*words})
        repeated = "repeated" in words and word in ("honest", "repeated")
        return letters[0], word == "spent", alarmed, own.allowed, repeated, word == "cut off"

    def _ask_one(
        self, query: Query, name: str, is_group: bool, account: Account, limits: Limits, enforce: bool, again: bool
    ) -> tuple[str, str]:
        """One account's letter, and whether it says honest, spent, accused, repeated or cut off.

        `again`: another account is accused and answers the query as before its alarm; this one must remember it too.
        """
        account.queries += 1
        letter = account.verdict(query.label, query.point, limits, self.now)
        if account.accused and enforce:
            return letter, self._ask_accused(query, is_group, account)
        known = account.knows(query)
        if not known:
            account.pictures = [*account.pictures, query.sketch][-self.capacity :]
            if not account.accused and self._bet(query, account, is_group):
                account.accused = True
                self._note("alarm", name, is_group, client=query.client)
                if enforce:
                    return letter, self._ask_accused(query, is_group, account)
        same = known and query.digest in account.answered
        if again and not same:
            return letter, "cut off"
        extra = letter in "AD" and not same
        stood = self._stands(account, limits)
        (most, period), used = parts(limits.extra_answers), account.extra_used(limits, self.now)
        over = account.is_class_spent(query.label, limits, self.now) or (extra and used >= most)
        if over and not same and not account.allowed:
            renewing = period or parts(limits.threshold)[1]
            renewal = (account.renews(limits, self.now), self.now) if renewing else (None, 0)
            self.denial = (name, is_group, int(used), int(most), *renewal)
            return letter, "spent"
        if letter == "C":
            account.record(query.label, query.point, limits, self.now)
        if not same:
            account.extra += extra
            if extra and period:
                account.extra_uses.add(period, 1.0, self.now)
            account.answered = [*account.answered, query.digest][-self.capacity :]
        if not account.allowed:
            for what in self._stands(account, limits) - stood:
                if what.replace("low", "spent") not in self._stands(account, limits) - {what}:
                    self._note(what, name, is_group, client=query.client)
        return letter, "honest"

    def _stands(self, account: Account, limits: Limits) -> set[str]:
        """Which budgets are low or spent: the extra answers, and those of any class."""
        covered, stands = max([account.covered(k, limits, self.now) for k in account.points], default=0.0), set()
        extra, most = account.extra_used(limits, self.now), parts(limits.extra_answers)[0]
        threshold = parts(limits.threshold)[0]
        if most and extra >= most:
            stands.add("budget spent")
        if most and 5 * extra >= 4 * most:
            stands.add("budget low")
        if covered > threshold:
            stands.add("class spent")
        if threshold and covered >= 0.8 * threshold:
            stands.add("class low")
        return stands

    def _ask_accused(self, query: Query, is_group: bool, account: Account) -> str:
        account.after_alarm += 1
        if account.after_alarm > self.rules.after_alarm:
            return "cut off"
        if query.digest in account.answered:
            return "repeated"
        return "cut off" if is_group else "accused"

    def _bet(self, query: Query, account: Account, is_group: bool) -> bool:
        """Place the query's bets; returns whether the bar is reached."""
        wallet = account.wallet(self.rules.test, self.rules.scores)
        wallet.bet(query.label, lanes_of(query, self.rules.scores))
        bar = self.rules.sum_that_accuses(self.number_of(self.rules.the_test))
        return wallet.best() >= (HOMES * bar if is_group else bar)

    def _note(self, what: str, name: str, is_group: bool, *, client: str = "", actor: str = "") -> None:
        of = self.account(name, group=is_group)
        wealth = of.wealth() if what == "alarm" or actor else 0.0
        self.events.append((what, name, is_group, client, wealth, of.queries, dict(of.cqs), actor))

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        self._note("pardon", name, group, actor=actor)
        account = self.account(name, group=group)
        account.accused, account.after_alarm = False, 0
        account.wallets, account.outlasted, account.homes = {}, 0, {}

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        self._note("allow" if allowed else "disallow", client, False, actor=actor)
        self.account(client).allowed = allowed

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        self._note("budget", client, False, actor=actor)
        self.account(client).budget = budget

    def standings(self) -> list[tuple]:
        """Everyone who asked or was given something by an operator; the highest wealth first."""
        on_record = [
            (
                *(name, group, a.queries, a.wealth(), a.accused, a.allowed, a.extra, a.after_alarm, a.budget),
                *(dict(a.cqs), a.extra_uses.usage(), {label: uses.usage() for label, uses in a.class_uses.items()}),
            )
            for (group, name), a in self.accounts.items()
            if a.queries or a.allowed or a.budget
        ]
        return sorted(on_record, key=lambda s: (-s[3], s[1], s[0]))
