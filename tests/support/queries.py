"""Queries as the sentinel's ledgers judge them: pictures, random albums of pictures, and long traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from queen.ledger import Ledger
from queen.ledger.words import Budget, Judgement
from queen.options import Group, Limits
from queen.sentinel.sketch import SIZE as SKETCH_SIZE
from tests.reference.watch import CALIBRATED, Query, Ranks, Rules, Wallet, Watcher, lanes_of
from tests.support.points import CLASSES, cuts_of, place, spot_of

OUTSIDE = (2.0, 0.0)
CLOSE = float(np.nextafter(np.float32(1), np.float32(0)))  # the largest distance of sketches that are nearly equal
PLENTY = Limits(radius=0.25, threshold=0.2, extra_answers=1000)
FOREIGN: tuple[Ranks, ...] = ((0, 0, True),)  # the strongest bet of one score: the first one wins 1.9, the second 6
USUAL: tuple[Ranks, ...] = ((CALIBRATED[0][0],) * 2 + (False,),)  # the weakest: it loses


def sketch(*numbers: float) -> tuple[float, ...]:
    return tuple(np.array([*numbers, *[0.0] * (SKETCH_SIZE - len(numbers))], np.float32).tolist())


def picture(number: int, point=OUTSIDE, *, client: str = "a", label: int = 0, bet=(), aside: float = 0.0) -> Query:
    """Different numbers are far apart; `aside` moves a picture a little, which makes it another input."""
    digest = number + 1 + round(1000 * aside)
    return Query(client, label, point, digest, sketch(10.0 * number, 0.0, aside), bet)


def pictures(count: int, start: int = 0, **options: object) -> list[Query]:
    return [picture(i, **options) for i in range(start, start + count)]


def wealth_of(*bets: tuple[Ranks, ...], label: int = 0) -> float:
    """The wealth of a client that has placed these bets in one class."""
    wallet = Wallet(len(bets[0]))
    for bet in bets:
        wallet.bet(label, lanes_of(Query("", label, OUTSIDE, 0, (), bet), len(bet)))
    return wallet.wealth()


def judge(ledger: Ledger, rules: Rules, queries: Query | Sequence[Query]) -> Judgement:
    return ledger.judge_rows(rules.rows([queries] if isinstance(queries, Query) else queries))


def flags(judgement: Judgement) -> list[tuple[str, bool, bool, bool]]:
    columns = (judgement.spent.tolist(), judgement.alarmed.tolist(), judgement.trusted.tolist())
    return list(zip(judgement.letters, *columns, strict=True))


def outcomes(judgement: Judgement) -> list[tuple[str, bool, bool, bool, bool, bool]]:
    """The flags of every row, and whether it is repeated, and cut off."""
    columns = zip(judgement.repeated.tolist(), judgement.cut_off.tolist(), strict=True)
    return [(*row, *more) for row, more in zip(flags(judgement), columns, strict=True)]


def events(ledger: Ledger) -> list[tuple]:
    """All but the number and the time."""
    return [(e.what, e.name, e.group, e.client, e.wealth, e.queries, e.coverage, e.actor) for e in ledger.events()]


def standings(ledger: Ledger) -> list[tuple]:
    return [tuple(vars(s).values()) for s in ledger.standings()]


NAMES = ("a", "b", "c")
GROUPS = ("a", "everyone", "team:1", "team:2")  # a group may have the name of a client
SCORES = 2
TESTS = (1, -(2**63), 7)
DIGESTS = [1, -1, 2**63 - 1, -(2**63), *range(2, 100)]
VARIANTS = [(0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (-CLOSE, CLOSE)]  # what is added to two numbers of a sketch
OPERATIONS = ("pardon", "pardon groups", "allow", "disallow", "budget", "no budget")

ranks_of = st.builds(
    lambda rank, less, above: (rank, max(0, rank - less), above),
    st.sampled_from([0, 0, 0, 1, 2, 5, 13, 50]),
    st.sampled_from([0, 0, 1, 4, 20]),
    st.booleans(),
)
bet_of = st.just(()) | st.tuples(*[ranks_of] * SCORES)
limits_of = st.builds(
    lambda radius, threshold, extra: Limits(radius=radius, threshold=threshold, extra_answers=extra),
    st.sampled_from([0.1, 0.5, 2.0, (0.3, 0.1, 1.0)]),
    st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    st.sampled_from([0, 1, 3, 1000, 1000]),
)
coordinate_of = st.sampled_from([-2.0, -1.0, -CLOSE, 0.0, 0.5, CLOSE, 1.0, 1.5, 2.0, 3.0])
album_of = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), spot_of, st.tuples(coordinate_of, coordinate_of), bet_of),
    min_size=1,
    max_size=8,
)
send_of = st.tuples(st.sampled_from(NAMES), st.integers(0, 7), st.integers(0, len(VARIANTS) - 1))
sends_of = st.lists(send_of, min_size=6, max_size=20)
operation_of = st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(NAMES))
chapters_of = st.lists(
    st.tuples(sends_of, cuts_of, operation_of, st.sampled_from(TESTS), st.integers(0, 2)), min_size=2, max_size=5
)
"""What is sent, in batches of which sizes, what an operator does then, in which test, and how far clients move."""


@st.composite
def rules_of(draw) -> Rules:
    """Every client may be in any of the groups; where its alarms have no consequences, neither have those of groups."""
    enforce = draw(st.sampled_from([True, True, False]))
    made = {name: Group(limits=draw(limits_of), enforce_alarm=enforce and draw(st.booleans())) for name in GROUPS}
    of_one_kind = st.lists(st.sampled_from(GROUPS), unique_by=lambda name: name.partition(":")[0])
    of_client = {name: {group: made[group] for group in draw(of_one_kind)} for name in NAMES}
    bar, spent = draw(st.sampled_from([1.5, 3.0, 5.0, 20.0, math.inf])), draw(st.sampled_from([1e9, 0.9]))
    account, cap = draw(st.sampled_from(["", "spring 2026"])), draw(st.sampled_from([0, 2, 7, math.inf, math.inf]))
    limits = draw(limits_of)
    return Rules(limits, SCORES, bar, enforce, of_client, account=account, alpha=spent, delta=spent, after_alarm=cap)


def moved(rules: Rules, test: int, steps: int) -> Rules:
    """The rules of another test, after every client has moved into the groups of another one."""
    groups = {name: rules.groups[NAMES[(i + steps) % len(NAMES)]] for i, name in enumerate(NAMES)}
    return replace(rules, test=test, groups=groups)


def variants_of(album: list, limits: Limits) -> list[list[Query]]:
    """Every picture in all its variants: the same place, other inputs, sketches that are near to the first or not."""
    labels, points = place([(label, spot) for label, spot, _, _ in album], limits)
    places, made = points.tolist(), []
    for i, (_, _, (a, b), bet) in enumerate(album):
        at = [sketch(a + da, b, db) for da, db in VARIANTS]
        made.append(
            [Query("", labels[i], tuple(places[i]), DIGESTS[i * len(at) + j], s, bet) for j, s in enumerate(at)]
        )
    return made


def queries_of(sends: list, variants: list[list[Query]]) -> list[Query]:
    """What the clients send: one variant of one picture each time."""
    return [replace(variants[i % len(variants)][variant], client=name) for name, i, variant in sends]


def operate(on: Ledger | Watcher, order: str, client: str) -> None:
    if order == "pardon":
        on.pardon(client, "op")
    elif order == "pardon groups":
        for group in GROUPS:
            on.pardon(group, "op", group=True)
    elif order in ("allow", "disallow"):
        on.allow(client, "op", allowed=order == "allow")
    else:
        on.set_budget(client, Budget(threshold=0.05, extra_answers=2) if order == "budget" else None, "op")


EVERYONE = {"everyone": Group(limits=PLENTY, enforce_alarm=True)}
FOREIGN_TO_ALL = [picture(100 + i, client=NAMES[i % 3], bet=FOREIGN * SCORES) for i in range(6)]


def accuse_everyone(on: Ledger | Watcher) -> list[tuple]:
    """The clients together raise the alarm of a group, before any of them reaches the bar alone: all outcomes."""
    rules = Rules(PLENTY, SCORES, 4.5, groups=dict.fromkeys(NAMES, EVERYONE))
    if isinstance(on, Watcher):
        on.rules = rules
        return [on.ask(query) for query in FOREIGN_TO_ALL]
    return outcomes(judge(on, rules, FOREIGN_TO_ALL))


def traffic(seed: int, count: int) -> list[Query]:
    """Three clients with repeats and near repeats of 300 pictures; later on the third sends unlikely ones.

    One query in six is a resend of what the client sent before.
    """
    rng = np.random.default_rng(seed)
    points, corners = rng.normal(0, 0.6, (300, 2)).tolist(), rng.normal(0, 6, (300, SKETCH_SIZE)).astype(np.float32)
    heights, ties = rng.uniform(size=(300, SCORES)).tolist(), rng.integers(0, 2, 300).tolist()
    queries = []
    for time, i in enumerate(rng.integers(0, 300, count).tolist()):
        move = np.float32(rng.choice([0.0, 0.0, 0.25, 3.0]))
        digest = 1 + i + 1000 * int(4 * move)
        client = NAMES[rng.integers(0, 3)]
        earlier = [query for query in queries if query.client == client]
        if earlier and rng.integers(6) == 0:
            queries.append(earlier[rng.integers(len(earlier))])
            continue
        usual = 0.3 if client == "c" and time > count / 3 else 1.0
        last, _ = CALIBRATED[i % CLASSES]
        lows = [int(usual * height * (last + 1)) for height in heights[i]]
        bet = tuple((low, max(0, low - ties[i]), low < 0.3 * last) for low in lows) if i % 5 else ()
        queries.append(Query(client, i % CLASSES, tuple(points[i]), digest, tuple((corners[i] + move).tolist()), bet))
    return queries


LIMITS = Limits(radius=0.1, threshold=0.1, extra_answers=150)
SHARED = {"everyone": Group(limits=replace(LIMITS, extra_answers=250), enforce_alarm=True)}
RULES = Rules(LIMITS, SCORES, 12.0, groups=dict.fromkeys(NAMES, SHARED), after_alarm=20)
"""Rules under which `traffic` meets every letter, spends budgets, raises alarms and goes on until it is cut off."""
