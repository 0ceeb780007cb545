"""What every ledger must do for the sentinel: evidence, budgets, the memory of repeats, groups and operators."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.core.certify import records_bound
from queen.errors import ClientError, LabelError, LimitsError, OptionError, QueenError
from queen.ledger import Ledger, RedisLedger, SqliteLedger
from queen.ledger.base import Budget, Judgement, Standing
from queen.ledger.rows import make_rows
from queen.options import FORMS, Group, Limits
from queen.sentinel.sketch import SIZE as SKETCH_SIZE
from queen.sentinel.sketch import Memory
from tests.contracts.test_every_ledger import BAD_CLIENTS, CLASSES, LEDGERS, NUMBERS, cut, cuts_of, place, spot_of
from tests.reference.watch import Query, Rules, Watcher, radius_of
from tests.support.redis_server import shared_server


class Reopened:
    """A ledger that is opened for every call and closed after it."""

    def __init__(self, open_it: Callable[[], Ledger], forget: Callable[[], None] = lambda: None) -> None:
        self._open, self.close = open_it, forget

    def __getattr__(self, name: str) -> Callable:
        def call(*args: object, **options: object) -> object:
            with closing(self._open()) as ledger:
                return getattr(ledger, name)(*args, **options)

        return call

    def each_standing(self) -> Iterator[Standing]:
        with closing(self._open()) as ledger:
            yield from ledger.each_standing()


def sqlite_reopened() -> Reopened:
    memory = Path("/dev/shm")  # where there is one: a disk would wait for every commit
    folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    return Reopened(lambda: SqliteLedger(Path(folder.name) / "ledger.db"), folder.cleanup)


def redis_reopened() -> Reopened:
    prefix = f"reopened-{next(NUMBERS)}"
    return Reopened(lambda: RedisLedger(shared_server().url, prefix=prefix, timeout=30))


def redis_cluster() -> RedisLedger:
    return RedisLedger(shared_server(cluster=True).url, prefix=f"test-{next(NUMBERS)}", timeout=30)


SENTINEL_LEDGERS = {
    **LEDGERS,
    "sqlite reopened": sqlite_reopened,
    "redis reopened": redis_reopened,
    "redis cluster": redis_cluster,
}
every_ledger = pytest.mark.parametrize("make", SENTINEL_LEDGERS.values(), ids=SENTINEL_LEDGERS)


@pytest.fixture(params=SENTINEL_LEDGERS.values(), ids=SENTINEL_LEDGERS)
def ledger(request):
    with closing(request.param()) as made:
        yield made


OUTSIDE = (2.0, 0.0)
CLOSE = float(np.nextafter(np.float32(1), np.float32(0)))  # the largest distance of sketches that are nearly equal
PLENTY = Limits(radius=0.25, threshold=0.2, extra_answers=1000)


def sketch(*numbers: float) -> tuple[float, ...]:
    return tuple(np.array([*numbers, *[0.0] * (SKETCH_SIZE - len(numbers))], np.float32).tolist())


def picture(number: int, point=OUTSIDE, *, client: str = "a", label: int = 0, bet=(), aside: float = 0.0) -> Query:
    """Different numbers are far apart; `aside` moves a picture a little, which makes it another input."""
    digest = number + 1 + round(1000 * aside)
    return Query(client, label, point, digest, sketch(10.0 * number, 0.0, aside), bet)


def pictures(count: int, start: int = 0, **options: object) -> list[Query]:
    return [picture(i, **options) for i in range(start, start + count)]


def tell(ledger: Ledger, rules: Rules, queries: Query | Sequence[Query]) -> Judgement:
    return ledger.judge_rows(rules.rows([queries] if isinstance(queries, Query) else queries))


def flags(judgement: Judgement) -> list[tuple[str, bool, bool, bool]]:
    columns = (judgement.spent.tolist(), judgement.alarmed.tolist(), judgement.trusted.tolist())
    return list(zip(judgement.letters, *columns, strict=True))


def events(ledger: Ledger) -> list[tuple]:
    """All but the number and the time."""
    return [(e.what, e.name, e.group, e.client, e.wealth, e.queries, e.coverage, e.actor) for e in ledger.events()]


def standings(ledger: Ledger) -> list[tuple]:
    return [tuple(vars(s).values()) for s in ledger.standings()]


# Random streams

NAMES = ("a", "b", "c")
BETS = 2
DIGESTS = [1, -1, 2**63 - 1, -(2**63), *range(2, 100)]
VARIANTS = [(0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (-CLOSE, CLOSE)]  # what is added to two numbers of a sketch
OPERATIONS = ("pardon", "allow", "disallow", "budget", "no budget")

factor_of = st.sampled_from([1e-3, 0.2, 0.5, 0.9, 1.0, 1.7, 4.0, 25.0])
bet_of = st.just(()) | st.tuples(*[factor_of] * BETS)
limits_of = st.builds(
    lambda radius, threshold, extra: Limits(radius=radius, threshold=threshold, extra_answers=extra),
    st.sampled_from([0.1, 0.5, 2.0, (0.3, 0.1, 1.0)]),
    st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    st.sampled_from([0, 1, 3, 1000]),
)
MEMBERSHIPS = ((), ("a",), ("everyone", "a"))  # a group may have the name of a client


@st.composite
def rules_of(draw) -> Rules:
    """Where alarms have no consequences (enforce), those of groups have none either."""
    enforce = draw(st.booleans())
    made = {
        name: Group(limits=draw(limits_of), enforce_alarm=enforce and draw(st.booleans())) for name in ("a", "everyone")
    }
    groups = {name: {group: made[group] for group in draw(st.sampled_from(MEMBERSHIPS))} for name in NAMES}
    form, bar = draw(st.sampled_from(FORMS)), draw(st.sampled_from([2.0, 6.0, 30.0, math.inf]))
    return Rules(draw(limits_of), BETS, form, bar, enforce, groups)


coordinate_of = st.sampled_from([-2.0, -1.0, -CLOSE, 0.0, 0.5, CLOSE, 1.0, 1.5, 2.0, 3.0])
album_of = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), spot_of, st.tuples(coordinate_of, coordinate_of), bet_of),
    min_size=1,
    max_size=8,
)
send_of = st.tuples(st.sampled_from(NAMES), st.integers(0, 7), st.integers(0, len(VARIANTS) - 1))
sends_of = st.lists(send_of, min_size=3, max_size=20)
operation_of = st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(NAMES))
chapters_of = st.lists(st.tuples(sends_of, cuts_of, operation_of), min_size=2, max_size=5)

many = settings(max_examples=400, deadline=None, database=None, derandomize=True)
some = settings(many, max_examples=200)


def develop(album: list, limits: Limits) -> list[list[Query]]:
    """Every picture in all its variants: the same place, other inputs, sketches that are near to the first or not."""
    labels, points = place([(label, spot) for label, spot, _, _ in album], limits)
    places, made = points.tolist(), []
    for i, (_, _, (a, b), bet) in enumerate(album):
        at = [sketch(a + da, b, db) for da, db in VARIANTS]
        made.append(
            [Query("", labels[i], tuple(places[i]), DIGESTS[i * len(at) + j], s, bet) for j, s in enumerate(at)]
        )
    return made


def written(sends: list, prints: list[list[Query]]) -> list[Query]:
    return [replace(prints[i % len(prints)][variant], client=name) for name, i, variant in sends]


def operate(on: Ledger | Watcher, what: str, client: str) -> None:
    if what == "pardon":
        on.pardon(client, "op")
    elif what in ("allow", "disallow"):
        on.allow(client, "op", allowed=what == "allow")
    else:
        on.set_budget(client, Budget(threshold=0.05, extra_answers=2) if what == "budget" else None, "op")


@pytest.mark.slow
@every_ledger
@many
@given(rules=rules_of(), album=album_of, chapters=chapters_of, capacity=st.sampled_from([1, 3, 1024]))
def test_any_stream_in_any_batches_equals_the_reference(make, rules, album, chapters, capacity):
    prints = develop(album, rules.limits)
    with pytest.MonkeyPatch.context() as patch, closing(make()) as ledger:
        patch.setattr(Memory, "CAPACITY", capacity)
        watcher = Watcher(rules, capacity)
        for sends, sizes, operation in chapters:
            queries = written(sends, prints)
            found = [row for part in cut(len(queries), sizes) for row in flags(tell(ledger, rules, queries[part]))]
            assert found == [watcher.ask(query) for query in queries]
            operate(ledger, *operation)
            operate(watcher, *operation)
        assert standings(ledger) == watcher.standings()  # wealth to the last bit
        assert events(ledger) == watcher.events
        for name in NAMES:
            account = watcher.account(name)
            assert ledger.coverage(name) == account.cqs
            assert {k: [tuple(p) for p in v.tolist()] for k, v in ledger.records(name).items()} == account.points


def traffic(seed: int, count: int) -> list[Query]:
    """Three clients with repeats and near repeats of 300 pictures; later on the third sends unlikely ones."""
    rng = np.random.default_rng(seed)
    points, corners = rng.normal(0, 0.6, (300, 2)).tolist(), rng.normal(0, 6, (300, SKETCH_SIZE)).astype(np.float32)
    factors = np.exp(rng.normal(-0.05, 0.3, (300, BETS))).tolist()
    queries = []
    for time, i in enumerate(rng.integers(0, 300, count).tolist()):
        move = np.float32(rng.choice([0.0, 0.0, 0.25, 3.0]))
        digest = 1 + i + 1000 * int(4 * move)
        client = NAMES[rng.integers(0, 3)]
        odd = 1.5 if client == "c" and time > count / 3 else 1.0
        bet = tuple(odd * f for f in factors[i]) if i % 5 else ()
        queries.append(Query(client, i % CLASSES, tuple(points[i]), digest, tuple((corners[i] + move).tolist()), bet))
    return queries


@pytest.mark.parametrize("form", FORMS)
def test_all_ledgers_agree_to_the_last_bit_however_the_stream_is_cut(form, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 100)
    queries = traffic(FORMS.index(form), 1500)
    limits = Limits(radius=0.1, threshold=0.05, extra_answers=400)
    everyone = Group(limits=replace(limits, threshold=0.5, extra_answers=700))
    rules = Rules(limits, BETS, form, 12.0, True, {name: {"everyone": everyone} for name in NAMES})
    seen = []
    for make, size in zip(SENTINEL_LEDGERS.values(), (1500, 7, 1500, 50, 60, 11), strict=True):
        with closing(make()) as ledger:
            rows = [row for i in range(0, 1500, size) for row in flags(tell(ledger, rules, queries[i : i + size]))]
            seen.append((rows, standings(ledger), events(ledger)))
    assert all(one == seen[0] for one in seen)
    rows = seen[0][0]
    assert {row[0] for row in rows} == set("ABCD")
    assert len({row[1:3] for row in rows}) == 3  # answered, spent, alarmed: the stream meets them all


def bound(limits: Limits) -> int:
    records = sum(records_bound(radius_of(limits, label), limits.threshold) for label in range(CLASSES))
    return records + limits.extra_answers


@pytest.mark.slow
@every_ledger
@some
@given(rules=rules_of(), album=album_of, chapters=chapters_of, capacity=st.sampled_from([1, 3, 1024]))
def test_no_stream_gets_more_distinct_honest_answers_than_the_bound(make, rules, album, chapters, capacity):
    prints = develop(album, rules.limits)
    honest: dict[tuple[bool, str], set[int]] = {}
    with pytest.MonkeyPatch.context() as patch, closing(make()) as ledger:
        patch.setattr(Memory, "CAPACITY", capacity)
        for sends, sizes, (_, pardoned) in chapters:
            queries = written(sends, prints)
            for part in cut(len(queries), sizes):
                for query, (_, spent, alarmed, _) in zip(
                    queries[part], flags(tell(ledger, rules, queries[part])), strict=True
                ):
                    if spent or (alarmed and rules.enforce):
                        continue
                    groups = rules.groups[query.client]
                    for key in [(False, query.client), *((True, name) for name in groups)]:
                        honest.setdefault(key, set()).add(query.digest)
            ledger.pardon(pardoned, "op")  # never gives back what was spent
    limits_by_name = {name: group.limits for groups in rules.groups.values() for name, group in groups.items()}
    for (is_group, name), digests in honest.items():
        assert len(digests) <= bound(limits_by_name[name] if is_group else rules.limits)


@every_ledger
def test_a_patient_client_gets_all_of_its_budget_and_not_one_answer_more(make):
    limits = Limits(radius=0.5, threshold=100.0, extra_answers=7)
    rng = np.random.default_rng(0)
    queries = [
        picture(i, tuple(point), label=i % CLASSES) for i, point in enumerate(rng.normal(0, 0.6, (400, 2)).tolist())
    ]
    with closing(make()) as ledger:
        judgement = tell(ledger, Rules(limits), queries)
        records = sum(map(len, ledger.records("a").values()))
        assert (~judgement.spent).sum() == records + 7 <= bound(limits)
        assert ledger.standing("a").extra_answers == 7
        again = tell(ledger, Rules(limits), queries)
        assert (again.spent == judgement.spent).all()  # what was answered stays free, what was refused stays refused


# Repeats


def test_an_identical_repeat_is_free_even_when_the_budget_is_gone(ledger):
    rules = Rules(replace(PLENTY, extra_answers=1), bar=1e9)
    first, second = picture(0, bet=(3.0,)), picture(1, bet=(0.5,))
    assert tell(ledger, rules, [first, second]).spent.tolist() == [False, True]
    before = ledger.standing("a")
    assert tell(ledger, rules, [first] * 3).spent.tolist() == [False] * 3
    assert ledger.standing("a") == replace(before, queries=5)


def test_an_identical_repeat_of_a_recorded_query_is_free(ledger):
    rules = Rules(replace(PLENTY, extra_answers=0))
    assert flags(tell(ledger, rules, [picture(0, (0.0, 0.0))] * 3)) == [
        ("C", False, False, False),
        *[("D", False, False, False)] * 2,
    ]
    assert ledger.standing("a").extra_answers == 0


@pytest.mark.parametrize("point", [OUTSIDE, (0.5, 0.0), (0.0, 0.1)], ids=["outside", "spent", "repeat"])
def test_a_refused_query_sent_again_is_refused_again_and_places_no_second_bet(ledger, point):
    rules = Rules(Limits(radius=0.25, threshold=0.0, extra_answers=0), bar=1e9)
    tell(ledger, rules, picture(0, (0.0, 0.0)))
    assert tell(ledger, rules, picture(1, point, bet=(2.0,))).spent.tolist() == [True]
    before = ledger.standing("a")
    assert before.wealth == 1.5
    assert tell(ledger, rules, [picture(1, point, bet=(2.0,))] * 3).spent.tolist() == [True] * 3
    assert ledger.standing("a") == replace(before, queries=5)


def test_a_refused_query_is_charged_when_there_is_budget_again(ledger):
    rules = Rules(replace(PLENTY, extra_answers=0), bar=1e9)
    assert tell(ledger, rules, picture(0, bet=(2.0,))).spent.all()
    ledger.set_budget("a", Budget(extra_answers=5), "op")
    assert not tell(ledger, rules, [picture(0, bet=(2.0,))] * 2).spent.any()
    standing = ledger.standing("a")
    assert (standing.extra_answers, standing.wealth) == (1, 1.5)


def test_a_near_repeat_places_no_bet_but_is_charged(ledger):
    rules = Rules(PLENTY, bar=1e9)
    tell(ledger, rules, picture(0, bet=(2.0,)))
    tell(ledger, rules, [picture(0, bet=(2.0,), aside=CLOSE), picture(0, bet=(2.0,), aside=-0.5)])
    standing = ledger.standing("a")
    assert (standing.wealth, standing.extra_answers) == (1.5, 3)
    tell(ledger, Rules(replace(PLENTY, extra_answers=3), bar=1e9), picture(0, bet=(2.0,), aside=0.25))
    assert ledger.standing("a") == replace(standing, queries=4)


def test_a_query_one_tolerance_away_is_another_one_and_bets(ledger):
    rules = Rules(PLENTY, form="product", bar=1e9)
    tell(ledger, rules, [picture(0, bet=(2.0,)), picture(0, bet=(2.0,), aside=1.0)])
    assert ledger.standing("a").wealth == 4.0


def test_a_query_without_a_bet_leaves_the_wealth_alone_and_is_remembered(ledger):
    rules = Rules(PLENTY, form="product", bar=1e9)
    tell(ledger, rules, [picture(0, bet=(2.0,)), picture(1), picture(1, bet=(2.0,), aside=0.5)])
    assert ledger.standing("a").wealth == 2.0


def test_what_one_client_sent_is_new_from_another(ledger):
    rules = Rules(PLENTY, bar=1e9)
    tell(ledger, rules, [picture(0, bet=(2.0,)), picture(0, bet=(2.0,), client="b")])
    one, other = ledger.standing("a"), ledger.standing("b")
    assert one == replace(other, name="a")
    assert (one.wealth, one.extra_answers) == (1.5, 1)


def test_another_number_of_scores_starts_the_evidence_anew(ledger):
    tell(ledger, Rules(PLENTY, bar=1e9), pictures(2, bet=(2.0,)))
    tell(ledger, Rules(PLENTY, size=2, bar=1e9), pictures(1, start=2, bet=(2.0, 4.0)))
    assert ledger.standing("a").wealth == 0.75 * 3


# Alarms


def test_wealth_accuses_when_it_reaches_the_bar_and_not_before(ledger):
    for client, bar in (("a", 6.0), ("b", math.nextafter(6.0, 7.0))):
        query = picture(0, client=client, bet=(2.0, 4.0))
        assert tell(ledger, Rules(PLENTY, 2, "product", bar), query).alarmed.tolist() == [client == "a"]
    assert ledger.standing("a").wealth == 3.0  # the mean


@pytest.mark.parametrize("point", [OUTSIDE, (0.0, 0.0)], ids=["outside", "inside"])
def test_the_query_that_raises_the_alarm_is_alarmed_and_neither_recorded_nor_charged(ledger, point):
    assert flags(tell(ledger, Rules(PLENTY, bar=1.0), picture(0, point, bet=(2.0,)))) == [
        ("A" if point == OUTSIDE else "C", False, True, False)
    ]
    standing = ledger.standing("a")
    assert (standing.alarmed, standing.extra_answers, standing.coverage) == (True, 0, {})
    assert ledger.records("a") == {}


def test_later_queries_of_an_accused_client_change_nothing_but_their_count(ledger):
    rules = Rules(PLENTY, bar=1.0)
    tell(ledger, rules, [picture(0, (0.0, 0.0)), picture(1, bet=(2.0,))])
    before, records = ledger.standing("a"), ledger.records("a")[0].tolist()
    later = [picture(0, (0.0, 0.0)), picture(2, (0.5, 0.0), bet=(2.0,)), picture(3, bet=(2.0,)), picture(1)]
    assert flags(tell(ledger, rules, later)) == [(letter, False, True, False) for letter in "DCAA"]
    assert ledger.standing("a") == replace(before, queries=6)
    assert ledger.records("a")[0].tolist() == records
    assert len(ledger.events()) == 1
    ledger.pardon("a", "op")
    tell(ledger, Rules(PLENTY, bar=1e9), picture(2, (0.5, 0.0), bet=(2.0,)))
    assert ledger.standing("a").wealth == 1.5  # it was not remembered while accused


def test_an_alarm_without_consequences_is_reported_and_everything_goes_on(ledger):
    rules = Rules(replace(PLENTY, extra_answers=2), bar=1.0, enforce=False)
    stream = [picture(0), picture(1, bet=(2.0,)), picture(2, bet=(2.0,)), picture(3, (0.0, 0.0)), picture(0)]
    assert flags(tell(ledger, rules, stream)) == [
        ("A", False, False, False),
        ("A", False, True, False),
        ("A", True, True, False),
        ("C", False, True, False),
        ("A", False, True, False),
    ]
    standing = ledger.standing("a")
    assert (standing.alarmed, standing.extra_answers, list(standing.coverage)) == (True, 2, [0])
    assert standing.wealth == 1.5
    assert len(ledger.events()) == 1


def test_an_alarm_accuses_one_client_alone(ledger):
    rules = Rules(PLENTY, bar=1.0)
    stream = [picture(0, client="b"), picture(1, bet=(2.0,)), picture(2, client="b"), picture(3)]
    assert tell(ledger, rules, stream).alarmed.tolist() == [False, True, False, True]
    assert not ledger.standing("b").alarmed


def test_an_alarm_is_an_event_that_says_who_and_how_it_stood(ledger):
    told = tell(ledger, Rules(PLENTY, bar=1.0), [picture(0, (0.0, 0.0)), picture(1, bet=(4.0,)), picture(2)])
    (event,) = ledger.events()
    ((standing, client),) = told.alarms
    assert (standing.name, standing.group, standing.alarmed, client) == ("a", False, True, "a")
    assert (standing.wealth, standing.queries, standing.coverage) == (event.wealth, event.queries, event.coverage)
    assert (event.id, event.what, event.name, event.group, event.client) == (1, "alarm", "a", False, "a")
    assert (event.wealth, event.queries, event.coverage) == (3.0, 2, ledger.coverage("a"))
    assert (event.actor, event.acknowledged) == ("", None)
    assert event.at > 1.7e9


def test_the_highest_wealth_stands_first(ledger):
    bets = {"low": 0.5, "high": 3.0, "middle": 1.0, "none": 0.0}
    stream = [picture(0, client=name, bet=(bet,) if bet else ()) for name, bet in (*bets.items(), ("also high", 3.0))]
    tell(ledger, Rules(PLENTY, bar=1e9), stream)
    assert [s.name for s in ledger.standings()] == ["also high", "high", "middle", "low", "none"]
    assert list(ledger.clients()) == sorted([*bets, "also high"])


def test_standings_can_be_read_one_after_the_other_while_judging_goes_on(ledger):
    names = [f"c{i}" for i in range(30)]
    tell(ledger, Rules(PLENTY, bar=1e9), [picture(0, client=name) for name in names])
    ledger.pardon("nobody", "boss")  # who is not on record
    expected = ledger.standings()
    reading = ledger.each_standing()
    found = [next(reading)]
    tell(ledger, Rules(PLENTY, bar=1e9), [picture(1, client="meanwhile")])
    found += [standing for standing in reading if standing.name != "meanwhile"]
    assert sorted(found, key=lambda s: s.name) == sorted(expected, key=lambda s: s.name)
    assert [s.name for s in ledger.standings() if s.name == "meanwhile"] == ["meanwhile"]


# Operators


def accuse(ledger: Ledger, client: str = "a") -> Rules:
    """A client with a record, an extra answer and an alarm, in a group that has seen the same."""
    rules = Rules(PLENTY, bar=1.0, groups={client: {"team": Group(limits=PLENTY)}})
    tell(ledger, rules, [picture(0, (0.0, 0.0), client=client), picture(1, client=client)])
    tell(ledger, rules, picture(2, client=client, bet=(2.0,)))
    assert ledger.standing(client).alarmed
    return rules


def test_a_pardon_clears_alarm_and_wealth_and_nothing_else(ledger):
    rules = accuse(ledger)
    before, team = ledger.standing("a"), ledger.standing("team", group=True)
    records = ledger.records("a")[0].tolist()
    ledger.pardon("a", "alice")
    assert ledger.standing("a") == replace(before, alarmed=False, wealth=0.0)
    assert ledger.standing("team", group=True) == team
    assert ledger.records("a")[0].tolist() == records
    assert events(ledger)[-1] == (
        "pardon", "a", False, "", before.wealth, before.queries, before.coverage, "alice"
    )  # fmt: skip
    assert flags(tell(ledger, rules, [picture(1), picture(3)])) == [("A", False, False, False)] * 2
    assert ledger.standing("a").extra_answers == 2  # picture 1 is still free


def test_after_a_pardon_the_evidence_starts_anew(ledger):
    accuse(ledger)
    ledger.pardon("a", "op")
    tell(ledger, Rules(PLENTY, bar=1e9), picture(3, bet=(4.0,)))
    assert ledger.standing("a").wealth == 3.0  # .75 of the stake, as at the first bet


def test_the_query_that_accused_is_no_free_answer_after_a_pardon(ledger):
    rules = accuse(ledger)
    ledger.pardon("a", "op")
    assert not tell(ledger, rules, picture(2, bet=(2.0,))).alarmed.any()
    standing = ledger.standing("a")
    assert (standing.extra_answers, standing.wealth) == (2, 0.0)


def test_a_client_can_be_accused_again_after_a_pardon(ledger):
    rules = accuse(ledger)
    ledger.pardon("a", "op")
    assert tell(ledger, rules, picture(3, bet=(2.0,))).alarmed.all()
    assert [e.what for e in ledger.events()] == ["alarm", "pardon", "alarm"]


def test_an_event_can_be_acknowledged(ledger):
    accuse(ledger)
    accuse(ledger, "b")
    ledger.acknowledge(2, "alice")
    assert [e.acknowledged for e in ledger.events()] == [None, "alice"]
    ledger.acknowledge(2, "bob")
    ledger.acknowledge(1, "bob")
    assert [e.acknowledged for e in ledger.events()] == ["bob", "bob"]
    assert [e.id for e in ledger.events()] == [1, 2]


@pytest.mark.parametrize("number", [0, -1, 2, 2**40])
def test_an_unknown_event_cannot_be_acknowledged(ledger, number):
    accuse(ledger)
    with pytest.raises(OptionError, match=f"no event {number}"):
        ledger.acknowledge(number, "alice")
    assert [e.acknowledged for e in ledger.events()] == [None]


def test_an_allowed_client_is_trusted_and_never_spent(ledger):
    rules = Rules(Limits(radius=0.25, threshold=0.0, extra_answers=1))
    ledger.allow("a", "alice")
    stream = [picture(0, (0.0, 0.0)), picture(1, (0.9, 0.0)), picture(2), picture(3), picture(4, (0.0, 0.1))]
    assert flags(tell(ledger, rules, stream)) == [(letter, False, False, True) for letter in "CBAAD"]
    standing = ledger.standing("a")
    assert (standing.allowed, standing.extra_answers) == (True, 3)
    assert len(ledger.records("a")[0]) == 1
    ledger.allow("a", "bob", allowed=False)
    assert flags(tell(ledger, rules, [picture(5), picture(2)])) == [
        ("A", True, False, False),
        ("A", False, False, False),
    ]
    assert [(e.what, e.actor) for e in ledger.events()] == [("allow", "alice"), ("disallow", "bob")]


def test_without_the_sentinel_nobody_is_alarmed_and_the_allow_list_still_counts(ledger):
    accuse(ledger)
    ledger.allow("b", "op")
    for client in ("a", "b"):
        judgement = ledger.judge(client, [0, 0], np.array([[0.5, 0.0], [2.0, 0.0]]), PLENTY)
        assert flags(judgement) == [(letter, False, False, client == "b") for letter in "CA"]
    assert ledger.standing("a").queries == 5  # counted under every policy
    assert ledger.standing("a").extra_answers == 1  # under the sentinel only


def test_an_accused_client_that_is_allowed_is_trusted_again_but_stays_accused(ledger):
    rules = accuse(ledger)
    ledger.allow("a", "alice")
    assert flags(tell(ledger, rules, picture(5))) == [("A", False, True, True)]
    assert ledger.standing("a").extra_answers == 2
    ledger.allow("a", "alice", allowed=False)
    assert flags(tell(ledger, rules, picture(6))) == [("A", False, True, False)]
    assert ledger.standing("a").extra_answers == 2


def test_evidence_against_an_allowed_client_is_kept_but_has_no_consequences(ledger):
    rules = Rules(PLENTY, bar=1.0)
    ledger.allow("a", "op")
    assert flags(tell(ledger, rules, [picture(0, bet=(2.0,)), picture(1)])) == [("A", False, True, True)] * 2
    assert [e.what for e in ledger.events()] == ["allow", "alarm"]
    assert ledger.standing("a").extra_answers == 2


def test_a_client_may_have_a_budget_of_its_own_and_lose_it_again(ledger):
    rules, own = Rules(replace(PLENTY, extra_answers=1)), Budget(extra_answers=2)
    assert tell(ledger, rules, pictures(2)).spent.tolist() == [False, True]
    ledger.set_budget("a", own, "alice")
    assert ledger.standing("a").budget == own
    assert tell(ledger, rules, pictures(3)).spent.tolist() == [False, False, True]
    assert tell(ledger, rules, pictures(2, client="b")).spent.tolist() == [False, True]
    ledger.set_budget("a", None, "bob")
    assert ledger.standing("a").budget is None
    assert tell(ledger, rules, pictures(4)).spent.tolist() == [False, False, True, True]
    assert [(e.what, e.name, e.actor) for e in ledger.events()] == [("budget", "a", "alice"), ("budget", "a", "bob")]


def test_a_budget_of_ones_own_changes_only_what_it_names(ledger):
    rules = Rules(Limits(radius=0.25, threshold=0.0, extra_answers=1))
    inside = [picture(i, (0.3 * i - 0.6, 0.0)) for i in range(4)]
    assert tell(ledger, rules, inside[:2]).letters == "CB"
    ledger.set_budget("a", Budget(threshold=1.0), "op")
    assert tell(ledger, rules, [*inside[1:], *pictures(2, start=9)]).spent.tolist() == [
        False,
        False,
        False,
        False,
        True,
    ]
    ledger.set_budget("a", Budget(extra_answers=2), "op")
    assert tell(ledger, rules, [picture(5, (0.0, 0.9)), *pictures(3, start=9)]).spent.tolist() == [
        True, False, True, True
    ]  # fmt: skip


def test_a_budget_takes_numbers_of_numpy_as_limits_do(ledger):
    ledger.set_budget("a", Budget(threshold=np.float32(0.25), extra_answers=np.int64(1)), "op")
    assert tell(ledger, Rules(PLENTY), pictures(2)).spent.tolist() == [False, True]
    assert ledger.standing("a").budget == Budget(threshold=0.25, extra_answers=1)


@pytest.mark.parametrize("budget", [0.5, {"threshold": 0.1}, "much", PLENTY], ids=["number", "dict", "text", "limits"])
def test_a_budget_of_ones_own_must_be_one(ledger, budget):
    with pytest.raises(QueenError):
        ledger.set_budget("a", budget, "op")
    assert ledger.standing("a").budget is None
    assert ledger.events() == []
    assert tell(ledger, Rules(PLENTY), picture(0)).letters == "A"


@pytest.mark.parametrize("wrong", [{"threshold": -1.0}, {"threshold": math.nan}, {"extra_answers": -1},
                                   {"extra_answers": 1.5}, {"threshold": "much"}], ids=str)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(LimitsError):
        Budget(**wrong)


@pytest.mark.parametrize("bad", BAD_CLIENTS, ids=lambda c: ascii(c)[:12])
def test_names_that_are_none_are_refused_and_nothing_is_logged(ledger, bad):
    rules = accuse(ledger)
    before = standings(ledger), ledger.events()
    calls = [
        lambda: ledger.pardon(bad, "op"),
        lambda: ledger.pardon("a", bad),
        lambda: ledger.allow(bad, "op"),
        lambda: ledger.allow("a", bad),
        lambda: ledger.set_budget(bad, Budget(), "op"),
        lambda: ledger.set_budget("a", Budget(), bad),
        lambda: ledger.acknowledge(1, bad),
        lambda: ledger.standing(bad),
        lambda: ledger.standing(bad, group=True),
        lambda: tell(ledger, replace(rules, groups={"a": {bad: Group(limits=PLENTY)}}), picture(0)),
    ]
    for call in calls:
        with pytest.raises(ClientError):
            call()
    assert (standings(ledger), ledger.events()) == before


def test_a_stranger_stands_at_the_beginning(ledger):
    standing = ledger.standing("nobody")
    assert (standing.name, standing.group, standing.queries, standing.wealth) == ("nobody", False, 0, 0.0)
    assert not standing.alarmed
    assert not standing.allowed
    assert (standing.extra_answers, standing.budget, standing.coverage) == (0, None, {})
    assert (ledger.standings(), ledger.events(), list(ledger.clients())) == ([], [], [])


def test_an_operator_may_prepare_a_client_that_never_asked(ledger):
    ledger.allow("early", "op")
    assert tell(ledger, Rules(PLENTY), picture(0, client="early")).trusted.all()


def test_a_client_that_only_operators_ever_named_is_not_on_record(ledger):
    ledger.pardon("ghost", "op")
    ledger.set_budget("ghost", Budget(extra_answers=1), "op")
    ledger.set_budget("ghost", None, "op")
    assert ledger.standings() == []
    assert list(ledger.clients()) == []


# Groups


def team(limits: Limits = PLENTY, *, enforce: bool = False, bar: float = math.inf, own: Limits = PLENTY) -> Rules:
    """Three clients that share one group; "outsider" is in none."""
    shared = {"team": Group(limits=limits, enforce_alarm=enforce)}
    return Rules(own, bar=bar, groups=dict.fromkeys(NAMES, shared))


def test_a_group_has_one_budget_for_all_its_members(ledger):
    rules = team(replace(PLENTY, extra_answers=2))
    stream = [picture(i, client=name) for i, name in enumerate(["a", "b", "outsider", "c", "a"])]
    assert tell(ledger, rules, stream).spent.tolist() == [False, False, False, True, True]
    assert ledger.standing("team", group=True).extra_answers == 2
    assert ledger.standing("team", group=True).queries == 4
    assert list(ledger.clients()) == ["a", "b", "c", "outsider"]


def test_a_group_keeps_records_of_its_own_under_limits_of_its_own(ledger):
    rules = team(Limits(radius=0.5, threshold=0.05))
    stream = [picture(0, (0.0, 0.0), client="a"), picture(1, (0.3, 0.0), client="b"), picture(2, (0.9, 0.0))]
    judgement = tell(ledger, rules, stream)
    assert judgement.letters == "CCC"  # the client's own
    assert judgement.spent.tolist() == [False, True, True]  # the group's class was spent by the first
    group = ledger.standing("team", group=True)
    assert (len(group.coverage), group.extra_answers) == (1, 0)
    assert group.coverage[0] == pytest.approx(0.25 * 0.921350**2, rel=1e-5)
    assert list(ledger.coverage("b")) == [0]  # it got no answer, but its own account had agreed to one


def test_a_spent_class_gives_no_answer_outside_its_disc_or_near_a_record_either(ledger):
    rules = Rules(Limits(radius=0.5, threshold=0.0, extra_answers=100))
    stream = [picture(0, (0.0, 0.0)), picture(1, (0.1, 0.0)), picture(2, (2.0, 0.0)), picture(3, (2.0, 0.0), label=1)]
    judgement = tell(ledger, rules, [*stream, stream[0]])
    assert judgement.letters == "CDAAD"
    assert judgement.spent.tolist() == [False, True, True, False, False]  # the repeat of an answer is free
    assert ledger.standing("a").extra_answers == 1


def test_a_group_is_pardoned_by_name_and_its_members_are_not(ledger):
    rules = replace(team(), bar=1.0)
    ledger.pardon("team", "op", group=True)
    tell(ledger, rules, [picture(0, bet=(2.0,))])
    assert ledger.standing("team", group=True).queries in (0, 1)
    before = ledger.standing("a")
    ledger.pardon("team", "op", group=True)
    assert ledger.standing("team", group=True).wealth == 0
    assert not ledger.standing("team", group=True).alarmed
    assert ledger.standing("a") == before
    assert ledger.standing("team").queries == 0  # the client of that name does not exist
    assert (ledger.events()[-1].what, ledger.events()[-1].group) == ("pardon", True)


def test_wealth_won_in_another_test_does_not_count(ledger):
    first = Rules(PLENTY, bar=1e9)
    tell(ledger, first, pictures(3, bet=(2.0,)))
    assert ledger.standing("a").wealth > 3
    rows = first.rows(pictures(1, start=3, bet=(2.0,)))
    ledger.judge_rows(replace(rows, bets=replace(rows.bets, test=77)))
    assert ledger.standing("a").wealth == 0.75 * 2


def test_a_repeat_of_what_another_member_got_is_free_for_the_group_but_not_for_the_client(ledger):
    rules = team(replace(PLENTY, extra_answers=1))
    stream = [picture(0, client="a"), picture(0, client="b"), picture(1, client="b")]
    assert tell(ledger, rules, stream).spent.tolist() == [False, False, True]
    assert ledger.standing("b").extra_answers == 2  # what the group refused was charged to the client before


def test_accounts_are_asked_in_the_order_of_their_kinds_and_what_one_denies_the_next_never_hears_of(ledger):
    none, some = Group(limits=replace(PLENTY, extra_answers=0)), Group(limits=PLENTY)
    groups = {"z:1": some, "b:9": some, "c": none, "b-": some}  # in the order b, b-, c, z, whatever comes first here
    for client in ("a", "b"):
        rules = Rules(PLENTY, groups={client: dict(reversed(groups.items())) if client == "b" else groups})
        assert tell(ledger, rules, picture(0, client=client)).spent.all()
    found = {name: ledger.standing(name, group=True) for name in groups}
    assert {name: (s.queries, s.extra_answers) for name, s in found.items()} == {
        "b:9": (2, 1), "b-": (2, 1), "c": (2, 0), "z:1": (0, 0)
    }  # fmt: skip
    assert [s.name for s in ledger.standings()] == ["a", "b", "b-", "b:9", "c"]


def test_two_groups_of_one_kind_are_refused_and_nothing_changes(ledger):
    rules = Rules(PLENTY, groups={"a": dict.fromkeys(["tenant:7", "tenant:8"], Group(limits=PLENTY))})
    with pytest.raises(OptionError, match="one group of a kind"):
        tell(ledger, rules, picture(0))
    assert ledger.standings() == []


def test_no_row_has_failed_where_the_ledger_is_one_piece(ledger):
    judgement = tell(ledger, Rules(PLENTY), pictures(3))
    assert judgement.failed.tolist() == [False] * 3
    assert judgement.failed.dtype == np.bool_


def test_a_ledger_that_can_write_says_so_and_changes_nothing(ledger):
    tell(ledger, Rules(PLENTY), pictures(2))
    before = standings(ledger), ledger.events()
    ledger.check()
    assert (standings(ledger), ledger.events()) == before


def test_what_a_member_is_refused_costs_its_group_nothing(ledger):
    rules = team(replace(PLENTY, extra_answers=2))
    ledger.set_budget("a", Budget(extra_answers=0), "op")
    assert tell(ledger, rules, [picture(i, client="a") for i in range(8)]).spent.all()
    assert not tell(ledger, rules, [picture(20, client="b"), picture(21, client="b")]).spent.any()
    assert ledger.standing("team", group=True).extra_answers == 2


def test_a_group_remembers_all_that_its_members_sent_in_one_batch(ledger):
    rules = team(replace(PLENTY, extra_answers=3))
    stream = [picture(i, client=name) for i, name in enumerate(NAMES)]
    tell(ledger, rules, stream)
    assert not tell(ledger, rules, stream).spent.any()
    assert ledger.standing("team", group=True).extra_answers == 3


def test_a_query_that_the_group_refused_is_refused_again(ledger):
    rules = team(replace(PLENTY, extra_answers=0))
    assert tell(ledger, rules, [picture(0), picture(0), picture(0, client="b")]).spent.all()


def test_an_accused_member_no_longer_feeds_its_group(ledger):
    rules = team(bar=1.0)
    tell(ledger, rules, [picture(0), picture(1, bet=(2.0,)), picture(2), picture(3, (0.0, 0.0))])
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers, group.wealth, group.coverage) == (1, 1, 0.0, {})


def test_a_member_whose_alarm_has_no_consequences_goes_on_feeding_its_group(ledger):
    rules = replace(team(bar=1.0), enforce=False)
    tell(ledger, rules, [picture(0), picture(1, bet=(2.0,)), picture(2)])
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers, group.alarmed) == (3, 3, True)


def test_an_allowed_member_feeds_no_group_and_is_not_stopped_by_one(ledger):
    rules = team(replace(PLENTY, extra_answers=0), enforce=True, bar=1.0)
    ledger.allow("a", "op")
    assert flags(tell(ledger, rules, [picture(0), picture(1, bet=(2.0,))]))[0] == ("A", False, False, True)
    assert ledger.standing("team", group=True).queries == 0
    assert tell(ledger, rules, picture(2, client="b")).spent.all()
    assert not tell(ledger, rules, picture(3)).spent.any()


@pytest.mark.parametrize("enforce", [False, True], ids=["reported", "enforced"])
def test_a_group_alarm_reaches_its_members_only_where_it_is_enforced(ledger, enforce):
    rules = replace(team(enforce=enforce, bar=3.0), form="product")
    stream = [picture(i, client=name, bet=(2.0,)) for i, name in enumerate(["a", "b", "c", "outsider"])]
    assert tell(ledger, rules, stream).alarmed.tolist() == [False, enforce, enforce, False]
    assert ledger.standing("team", group=True).alarmed
    assert not any(ledger.standing(name).alarmed for name in NAMES)
    (event,) = ledger.events()
    assert (event.what, event.name, event.group, event.client) == ("alarm", "team", True, "b")
    assert (event.wealth, event.queries) == (4.0, 2)
    group = ledger.standing("team", group=True)
    assert (group.queries, group.extra_answers) == (3, 1 if enforce else 3)


def test_a_group_pays_for_honest_answers_also_after_an_alarm_that_nobody_acts_upon(ledger):
    rules = replace(team(replace(PLENTY, extra_answers=3), enforce=True, bar=1.0), enforce=False)
    stream = [picture(i, bet=(2.0,)) for i in range(5)]
    assert tell(ledger, rules, stream).spent.tolist() == [False] * 3 + [True] * 2
    assert ledger.standing("team", group=True).extra_answers == 3


def test_a_pardon_of_a_member_leaves_the_group_accused(ledger):
    rules = replace(team(enforce=True, bar=3.0), form="product")
    tell(ledger, rules, [picture(0, bet=(2.0,)), picture(1, bet=(2.0,), client="b")])
    ledger.pardon("b", "op")
    assert ledger.standing("team", group=True).alarmed
    assert tell(ledger, rules, picture(2, client="b")).alarmed.all()


def test_a_client_and_a_group_of_the_same_name_do_not_mix(ledger):
    limits = replace(PLENTY, extra_answers=2)
    rules = Rules(PLENTY, bar=1e9, groups={"b": {"a": Group(limits=limits)}})
    tell(ledger, rules, [picture(0, (0.0, 0.0), client="a", bet=(2.0,)), *pictures(2, client="b", bet=(0.5,))])
    client, group = ledger.standing("a"), ledger.standing("a", group=True)
    assert (client.group, client.queries, client.extra_answers, list(client.coverage)) == (False, 1, 0, [0])
    assert (group.group, group.queries, group.extra_answers, list(group.coverage)) == (True, 2, 2, [])
    ledger.allow("a", "op")
    ledger.set_budget("a", Budget(extra_answers=50), "op")
    assert ledger.standing("a", group=True) == group
    assert tell(ledger, rules, picture(5, client="b")).spent.all()
    assert list(ledger.clients()) == ["a", "b"]
    assert [(s.name, s.group) for s in ledger.standings()] == [("a", False), ("b", False), ("a", True)]


def test_groups_keep_coverage_without_the_sentinel_too(ledger):
    shared = {"team": Group(limits=Limits(radius=0.25, threshold=0.0))}
    points = np.array([[0.0, 0.0], [0.9, 0.0]])
    rows = make_rows(("a", "b"), [0, 1], [0, 0], points, PLENTY, groups=[shared, shared])
    judgement = ledger.judge_rows(rows)
    assert (judgement.letters, judgement.spent.tolist()) == ("CC", [False, True])
    assert list(ledger.standing("team", group=True).coverage) == [0]
    assert ledger.standing("team", group=True).queries == 2
    assert [ledger.standing(name).queries for name in ("a", "b")] == [1, 1]


@pytest.mark.parametrize(
    ("limits", "error"), [(Limits(radius=(0.1, 0.1)), LabelError)], ids=["radii for too few classes"]
)
def test_a_group_with_bad_limits_is_refused_and_changes_nothing(ledger, limits, error):
    with pytest.raises(error):
        tell(ledger, team(limits), [picture(0), picture(1, label=2)])
    assert ledger.standings() == []


# The memory of repeats


def test_what_was_forgotten_must_be_paid_again(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 4)
    rules = Rules(replace(PLENTY, extra_answers=7), bar=1e9)
    tell(ledger, rules, pictures(4))
    assert not tell(ledger, rules, pictures(4)).spent.any()
    assert ledger.standing("a").extra_answers == 4
    tell(ledger, rules, picture(4))  # pushes picture 0 out
    assert not tell(ledger, rules, [picture(4), picture(3), picture(2), picture(1)]).spent.any()
    assert ledger.standing("a").extra_answers == 5
    assert not tell(ledger, rules, [picture(0), picture(1)]).spent.any()  # each pushes the next one out
    assert ledger.standing("a").extra_answers == 7
    assert tell(ledger, rules, [picture(2), picture(1)]).spent.tolist() == [True, False]


def test_refused_queries_push_out_old_ones_and_never_become_free(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(replace(PLENTY, extra_answers=1))
    assert tell(ledger, rules, pictures(4)).spent.tolist() == [False, True, True, True]
    assert tell(ledger, rules, pictures(4)).spent.all()
    assert ledger.standing("a").extra_answers == 1


def test_a_forgotten_query_bets_again(ledger, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 2)
    rules = Rules(PLENTY, form="product", bar=1e9)
    tell(ledger, rules, [picture(0, bet=(2.0,)), picture(1), picture(0, bet=(2.0,)), picture(2)])
    assert ledger.standing("a").wealth == 2.0
    tell(ledger, rules, picture(0, bet=(2.0,)))
    assert ledger.standing("a").wealth == 4.0


def test_the_memory_holds_its_capacity_and_no_more(ledger):
    rules = Rules(replace(PLENTY, extra_answers=10**6))
    count = Memory.CAPACITY + 10
    tell(ledger, rules, pictures(count))
    remembered = pictures(Memory.CAPACITY, start=10)
    tell(ledger, rules, remembered)
    assert ledger.standing("a").extra_answers == count
    tell(ledger, rules, pictures(10))
    assert ledger.standing("a").extra_answers == count + 10


# Many at once


@every_ledger
def test_threads_on_one_client_give_no_answer_beyond_the_budget(make):
    rules, answered = Rules(replace(PLENTY, extra_answers=50), bar=1e9), []
    with closing(make()) as ledger:

        def work(worker: int) -> None:
            for i in range(0, 40, 4):
                batch = pictures(4, start=100 * worker + i, bet=(1.0,))
                answered.extend((~tell(ledger, rules, batch).spent).tolist())

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        standing = ledger.standing("a")
        assert (standing.queries, standing.extra_answers, len(answered), sum(answered)) == (160, 50, 160, 50)
