"""What every ledger must do for the sentinel, whatever the stream: decide like the reference, and keep to the bound."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import strategies as st

from queen.core.certify import records_bound
from queen.options import Group, Limits
from queen.sentinel.sketch import Memory
from tests.reference.watch import Rules, Watcher, radius_of
from tests.support.ledgers import ALL_LEDGERS, on_random_streams, run_threads
from tests.support.points import CLASSES, cut
from tests.support.queries import (
    EVERYONE,
    FOREIGN,
    NAMES,
    OPERATIONS,
    PLENTY,
    SCORES,
    TESTS,
    USUAL,
    accuse_everyone,
    album_of,
    chapters_of,
    events,
    judge,
    moved,
    operate,
    outcomes,
    picture,
    pictures,
    queries_of,
    rules_of,
    standings,
    traffic,
    variants_of,
)

every_ledger = pytest.mark.parametrize("make", ALL_LEDGERS.values(), ids=ALL_LEDGERS)

STREAMS = {
    "rules": rules_of(),
    "album": album_of,
    "chapters": chapters_of,
    "capacity": st.sampled_from([1, 3, 1024, 1024]),
}
MANY = {"memory": 400, "sqlite": 100, "redis": 150, "sqlite reopened": 60, "redis reopened": 50, "redis cluster": 40}
SOME = {"memory": 200, "sqlite": 30, "redis": 50, "sqlite reopened": 20, "redis reopened": 20, "redis cluster": 20}


@pytest.mark.slow
@on_random_streams(MANY, **STREAMS, alarm=st.sampled_from([1, 1, 2, None]))
def test_any_stream_in_any_batches_equals_the_reference(make, rules, album, chapters, capacity, alarm):
    variants = variants_of(album, rules.limits)
    with pytest.MonkeyPatch.context() as patch, closing(make()) as ledger:
        patch.setattr(Memory, "CAPACITY", capacity)
        watcher = Watcher(rules, capacity)
        for number, (sends, sizes, operation, test, steps) in enumerate(chapters):
            if number == alarm:
                assert accuse_everyone(ledger) == accuse_everyone(watcher)
            queries, now = queries_of(sends, variants), moved(rules, test, steps)
            watcher.rules = now
            rows = [row for part in cut(len(queries), sizes) for row in outcomes(judge(ledger, now, queries[part]))]
            assert rows == [watcher.ask(query) for query in queries]
            operate(ledger, *operation)
            operate(watcher, *operation)
        assert standings(ledger) == watcher.standings()  # wealth to the last bit
        assert events(ledger) == watcher.events
        for test in TESTS:
            assert ledger.number_of(replace(rules, test=test).the_test) == watcher.number_of(
                replace(rules, test=test).the_test
            )
        for name in NAMES:
            account = watcher.account(name)
            assert ledger.coverage(name) == account.cqs
            assert {k: [tuple(p) for p in v.tolist()] for k, v in ledger.records(name).items()} == account.points


@every_ledger
@pytest.mark.parametrize("seed", range(2))
def test_the_accused_are_answered_as_the_reference_says(make, seed):
    """Old and new pictures of clients and groups who are accused, cut off, pardoned, and accused again."""
    rng = np.random.default_rng(seed)
    team = {"team:1": Group(limits=replace(PLENTY, extra_answers=30), enforce_alarm=True)}
    rules = Rules(PLENTY, SCORES, 4.5, groups={"a": EVERYONE, "b": EVERYONE | team, "c": team}, after_alarm=12)
    watcher, met = Watcher(rules), set()

    def counted(*, group: bool) -> int:
        return sum(account.after_alarm for (is_group, _), account in watcher.accounts.items() if is_group == group)

    with closing(make()) as ledger:
        for chapter in range(16):
            if chapter % 5 == 2:
                for on, name in product((ledger, watcher), NAMES):
                    on.pardon(name, "op")
                assert accuse_everyone(ledger) == accuse_everyone(watcher)
                watcher.rules = rules
            queries, expected = [], []
            for number in (2 * chapter + rng.integers(0, 10, 20)).tolist():
                bet = FOREIGN * SCORES if number % 3 == 0 else ()
                queries.append(picture(number, client=NAMES[rng.integers(3)], bet=bet))
                before = [counted(group=False), counted(group=True)]
                expected.append(watcher.ask(queries[-1]))
                met |= {
                    (is_group, *expected[-1][4:])
                    for is_group in (False, True)
                    if counted(group=is_group) > before[is_group]
                }
            at = int(rng.integers(1, 20))
            assert outcomes(judge(ledger, rules, queries[:at])) == expected[:at]
            assert outcomes(judge(ledger, rules, queries[at:])) == expected[at:]
            assert standings(ledger) == watcher.standings()
            for on in (ledger, watcher):
                operate(on, OPERATIONS[chapter % 4], NAMES[chapter // 4 % 3])
        assert events(ledger) == watcher.events
    # Whether it is a group that counts, whether the row is repeated, whether it is cut off: all that there is.
    assert met == {
        (False, False, False),
        (False, True, False),
        (False, False, True),
        (True, True, False),
        (True, False, True),
    }


@pytest.mark.real
@pytest.mark.parametrize("seed", range(3))
def test_all_ledgers_agree_to_the_last_bit_however_the_stream_is_cut(seed, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 100)
    queries = traffic(seed, 1500)
    limits = Limits(radius=0.1, threshold=0.05, extra_answers=400)
    everyone = Group(limits=replace(limits, threshold=0.5, extra_answers=700))
    rules = Rules(limits, SCORES, 12.0, True, {name: {"everyone": everyone} for name in NAMES}, after_alarm=120)
    results = []
    for make, size in zip(ALL_LEDGERS.values(), (1500, 7, 1500, 50, 60, 11), strict=True):
        with closing(make()) as ledger:
            rows = [row for i in range(0, 1500, size) for row in outcomes(judge(ledger, rules, queries[i : i + size]))]
            results.append((rows, standings(ledger), events(ledger)))
    assert all(result == results[0] for result in results)
    rows = results[0][0]
    assert {row[0] for row in rows} == set("ABCD")
    met = {"spent" if spent else "alarmed" if alarmed else "" for _, spent, alarmed, *_ in rows}
    assert met == {"", "spent", "alarmed"}
    assert {row[4:] for row in rows} == {(False, False), (True, False), (False, True)}  # repeated, cut off


def bound(limits: Limits) -> int:
    records = sum(records_bound(radius_of(limits, label), limits.threshold) for label in range(CLASSES))
    return records + limits.extra_answers


@pytest.mark.slow
@on_random_streams(SOME, **STREAMS)
def test_no_stream_gets_more_distinct_honest_answers_than_the_bound(make, rules, album, chapters, capacity):
    variants = variants_of(album, rules.limits)
    honest: dict[tuple[bool, str], set[int]] = {}
    with pytest.MonkeyPatch.context() as patch, closing(make()) as ledger:
        patch.setattr(Memory, "CAPACITY", capacity)
        for sends, sizes, (_, pardoned), test, steps in chapters:
            queries, now = queries_of(sends, variants), moved(rules, test, steps)
            for part in cut(len(queries), sizes):
                for query, (_, spent, alarmed, _, repeated, _) in zip(
                    queries[part], outcomes(judge(ledger, now, queries[part])), strict=True
                ):
                    if spent or (alarmed and rules.enforce and not repeated):
                        continue
                    groups = now.groups[query.client]
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
        judgement = judge(ledger, Rules(limits), queries)
        records = sum(map(len, ledger.records("a").values()))
        assert (~judgement.spent).sum() == records + 7 <= bound(limits)
        assert ledger.standing("a").extra_answers == 7
        again = judge(ledger, Rules(limits), queries)
        assert (again.spent == judgement.spent).all()  # what was answered stays free, what was refused stays refused


@every_ledger
def test_threads_on_one_client_give_no_answer_beyond_the_budget(make):
    rules, answered = Rules(replace(PLENTY, extra_answers=50), bar=1e9), []
    with closing(make()) as ledger:

        def work(worker: int) -> None:
            for i in range(0, 40, 4):
                batch = pictures(4, start=100 * worker + i, bet=USUAL)
                answered.extend((~judge(ledger, rules, batch).spent).tolist())

        run_threads(work, 4)
        standing = ledger.standing("a")
        assert (standing.queries, standing.extra_answers, len(answered), sum(answered)) == (160, 50, 160, 50)
