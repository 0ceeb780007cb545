"""What every ledger must do; a new one joins LEDGERS and has to pass all of it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from queen.core.certify import records_bound
from queen.errors import (
    ClientError,
)
from queen.ledger.rows import make_rows
from queen.options import Limits
from queen.types import Verdict
from tests.reference.judge import BruteForce, judge_stream
from tests.support.ledgers import LEDGERS, on_random_streams, run_threads
from tests.support.ledgers import records_and_coverage as state
from tests.support.points import CLASSES, cut, cuts_of, place, rows_of

every_ledger = pytest.mark.parametrize("make", LEDGERS.values(), ids=LEDGERS)

radius_of = st.sampled_from([0.02, 0.1, 0.25, 0.3, 0.5, 1.0, 2.0, 3.0]) | st.floats(0.01, 1.5)
threshold_of = st.sampled_from([0.0, 1e-9, 0.01, 0.0625, 0.2, 1.0, 1e9]) | st.floats(0, 0.5)
limits_of = st.builds(
    lambda radius, threshold: Limits(radius=radius, threshold=threshold),
    radius_of | st.tuples(*[radius_of] * CLASSES),
    threshold_of,
)


def random_stream(seed: int, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = rng.normal(0, 0.5, (rows, 2))
    points[::3] = points[rng.integers(0, rows, len(points[::3]))] + rng.normal(0, 0.01, (len(points[::3]), 2))
    return rng.integers(0, CLASSES, rows), points


# A batch of 24 rows is short, yet the rule has only pairs to get wrong; 1,000 streams reach every one of its corners.
# SQLite shares the arithmetic of the ledger in memory and needs fewer; Redis has its own program, but is slow.
MANY = {"memory": 1000, "sqlite": 200, "redis": 300}
SOME = {"memory": 200, "sqlite": 50, "redis": 50}


@pytest.mark.slow
@on_random_streams(MANY, limits=limits_of, rows=rows_of, sizes=cuts_of)
def test_any_stream_in_any_batches_equals_the_brute_force(make, limits, rows, sizes):
    labels, points = place(rows, limits)
    ledger, brute = make(), BruteForce()
    letters, spent, before = "", [], {}
    for part in cut(len(labels), sizes):
        judgement = ledger.judge("a", labels[part], points[part], limits)
        letters, spent = letters + judgement.letters, spent + judgement.spent.tolist()
        now = ledger.coverage("a")
        assert all(now[label] >= value for label, value in before.items())
        before = now
    assert (letters, spent) == brute.judge(labels, points.tolist(), limits.radius, limits.threshold)
    assert ledger.coverage("a") == brute.cqs  # to the last bit: areas added one after the other
    records = ledger.records("a")
    assert {label: [tuple(p) for p in found.tolist()] for label, found in records.items()} == brute.points
    for label, found in records.items():
        radius = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
        assert len(found) <= records_bound(radius, limits.threshold)
    ledger.close()


@pytest.mark.slow
@on_random_streams(
    SOME, limits=limits_of, rows=rows_of, owners=st.lists(st.integers(0, 2), min_size=24, max_size=24), sizes=cuts_of
)
def test_clients_mixed_in_one_call_are_judged_as_if_alone(make, limits, rows, owners, sizes):
    labels, points = place(rows, limits)
    labels, owner, names = np.array(labels), np.array(owners[: len(labels)]), ("a", "b", "c")
    ledger = make()
    letters, spent = np.empty(len(labels), "U1"), np.empty(len(labels), bool)
    for part in cut(len(labels), sizes):
        judgement = ledger.judge_rows(make_rows(names, owner[part], labels[part], points[part], limits))
        letters[part], spent[part] = list(judgement.letters), judgement.spent
    for i, name in enumerate(names):
        mine = owner == i
        expected = judge_stream(labels[mine].tolist(), points[mine].tolist(), limits.radius, limits.threshold)
        assert ("".join(letters[mine]), spent[mine].tolist()) == expected
        alone = make()
        if mine.any():
            alone.judge(name, labels[mine], points[mine], limits)
        assert state(ledger, name) == state(alone, name)
        alone.close()
        assert ledger.standing(name).queries == mine.sum()
    assert list(ledger.clients()) == sorted({names[i] for i in owner})
    ledger.close()


@on_random_streams(SOME, calls=st.lists(st.tuples(limits_of, rows_of), min_size=2, max_size=4))
def test_other_limits_between_calls_keep_the_records(make, calls):
    ledger, brute = make(), BruteForce()
    for limits, rows in calls:
        labels, points = place(rows, limits)
        judgement = ledger.judge("a", labels, points, limits)
        assert (judgement.letters, judgement.spent.tolist()) == brute.judge(
            labels, points.tolist(), limits.radius, limits.threshold
        )
    assert ledger.coverage("a") == brute.cqs
    ledger.close()


@pytest.mark.real
@pytest.mark.parametrize("seed", range(5))
def test_all_ledgers_agree_to_the_last_bit(seed):
    labels, points = random_stream(seed)
    limits = Limits(radius=0.03 + 0.02 * seed, threshold=0.05)
    outcomes = []
    for make in LEDGERS.values():
        ledger = make()
        judgement = ledger.judge("a", labels, points, limits)
        outcomes.append((judgement.letters, judgement.spent.tolist(), *state(ledger, "a")))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert set(outcomes[0][0]) == set("ABCD")  # the stream meets every verdict


@every_ledger
def test_points_exactly_on_the_rim_are_outside(make):
    points = np.array([[0.28, 0.96], [1.0, 0.0], [0.6, -0.8], [-0.8089281451572671, 0.5879075233167401]])
    assert make().judge("a", [0] * 4, points, Limits()).letters == "AAAA"
    assert make().judge("a", [0], np.array([[0.9946128276123087, 0.1036596505350456]]), Limits()).letters == "C"


@every_ledger
def test_a_point_exactly_one_radius_away_is_new(make):
    ledger, limits = make(), Limits(radius=0.25, threshold=1e9)
    points = np.array([[0.0, 0.0], [0.25, 0.0], [0.0, -0.25], [np.nextafter(0.25, 0), 0.0], [0.0, 0.24999]])
    assert ledger.judge("a", [0] * 5, points, limits).letters == "CCCDD"


@every_ledger
def test_a_threshold_of_zero_allows_one_record_a_class(make):
    labels, points = random_stream(7)
    ledger = make()
    judgement = ledger.judge("a", labels, points, Limits(radius=0.05, threshold=0.0))
    assert judgement.letters.count("C") == CLASSES == len(ledger.records("a"))
    assert judgement.letters.count("B") > 0


@every_ledger
def test_a_class_is_spent_only_above_the_threshold(make):
    point = np.array([[0.0, 0.0]])
    ledger = make()
    ledger.judge("a", [0], point, Limits(radius=0.1))
    exactly = Limits(radius=0.1, threshold=ledger.coverage("a")[0])
    judgement = ledger.judge("a", [0, 0], np.array([[0.5, 0.0], [-0.5, 0.0]]), exactly)
    assert (judgement.letters, judgement.spent.tolist()) == ("CB", [False, True])
    at_once = make().judge("a", [0, 0, 0], np.array([[0.0, 0.0], [0.5, 0.0], [-0.5, 0.0]]), exactly)
    assert (at_once.letters, at_once.spent.tolist()) == ("CCB", [False, False, True])


@every_ledger
def test_the_bound_on_records_holds_for_the_cheapest_points(make):
    radius, rim = 0.03, []
    for angle in np.linspace(0, 2 * np.pi, 205, endpoint=False):
        size = 1.0
        while True:  # as near to the rim as floats allow, where a record adds least
            x, y = float(np.cos(angle)) * size, float(np.sin(angle)) * size
            if x * x + y * y < 1:
                break
            size = float(np.nextafter(size, 0))
        rim.append((x, y))
    for quarters in range(1, 204, 3):
        limits = Limits(radius=radius, threshold=quarters * radius * radius / 4)
        ledger = make()
        ledger.judge("a", [0] * len(rim), np.array(rim), limits)
        assert len(ledger.records("a")[0]) <= records_bound(radius, limits.threshold)


@every_ledger
def test_clients_and_classes_do_not_touch_each_other(make):
    labels, points = random_stream(3)
    limits = Limits(radius=0.1, threshold=0.02)
    ledger = make()
    first = ledger.judge("a", labels, points, limits)
    before = state(ledger, "a")
    second = ledger.judge("A", labels, points, limits)
    assert second.letters == first.letters
    assert state(ledger, "a") == before == state(ledger, "A")
    relabelled = ledger.judge("b", labels + 10, points, limits)
    assert relabelled.letters == first.letters
    assert {k - 10: v for k, v in ledger.coverage("b").items()} == before[0]


@every_ledger
def test_an_unknown_client_has_seen_nothing(make):
    ledger = make()
    ledger.judge("only outside", [0], np.array([[5.0, 5.0]]), Limits())
    assert state(ledger, "nobody") == ({}, {}) == state(ledger, "only outside")
    assert list(ledger.clients()) == ["only outside"]


@every_ledger
@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "a b\n", "'; DROP TABLE record; --", "日本", " "])
def test_any_short_unicode_text_names_a_client(make, name):
    ledger = make()
    ledger.judge(name, [0], np.array([[0.5, 0.0]]), Limits())
    assert list(ledger.clients()) == [name]
    assert list(ledger.coverage(name)) == [0]


@every_ledger
def test_a_client_named_twice_in_one_call_is_still_one_client(make):
    labels, points = random_stream(5)
    limits = Limits(radius=0.1, threshold=0.02)
    ledger = make()
    try:
        rows = make_rows(("a", "a"), np.arange(len(labels)) % 2, labels, points, limits)
    except ClientError:
        return  # to refuse it is as good
    judgement = ledger.judge_rows(rows)
    expected = judge_stream(labels.tolist(), points.tolist(), limits.radius, limits.threshold)
    assert (judgement.letters, judgement.spent.tolist()) == expected


@every_ledger
@pytest.mark.parametrize(("point", "letters"), [((0.5, 0.5), "CD"), ((0.8, 0.8), "AA")], ids=["inside", "outside"])
def test_a_batch_of_65536_equal_rows_is_no_attack(make, point, letters):
    ledger = make()
    judgement = ledger.judge("a", np.zeros(65536, int), np.tile(point, (65536, 1)), Limits())
    assert judgement.letters == letters[0] + letters[1] * 65535
    assert sum(map(len, ledger.records("a").values())) == (letters[0] == "C")


@every_ledger
def test_verdicts_are_the_letters_in_words(make):
    judgement = make().judge("a", [0, 0, 0], np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), Limits())
    assert judgement.verdicts == (Verdict.OUTSIDE, Verdict.FRESH, Verdict.REPEAT)


@every_ledger
def test_other_precisions_and_layouts_of_arrays_are_judged_alike(make):
    labels, points = random_stream(11, 60)
    points = points.astype(np.float32)
    limits = Limits(radius=0.2)
    expected = make().judge("a", labels, points.astype(np.float64), limits).letters
    for other in (points, np.asfortranarray(points), points[::-1][::-1], points.tolist()):
        for kind in (labels.astype(np.uint8), labels.astype(np.int32), labels.tolist()):
            assert make().judge("a", kind, other, limits).letters == expected


@every_ledger
def test_threads_on_one_client_do_not_lose_or_double_a_record(make):
    ledger, limits = make(), Limits(radius=0.05, threshold=1e9)
    letters: list[str] = []

    def work(seed: int) -> None:
        labels, points = random_stream(seed, 200)
        for i in range(0, 200, 10):
            letters.append(ledger.judge("a", labels[i : i + 10], points[i : i + 10], limits).letters)

    run_threads(work, 6)
    records = ledger.records("a")
    assert "".join(letters).count("C") == sum(map(len, records.values())) > 0
    assert len("".join(letters)) == 6 * 200
    for found in records.values():
        dx, dy = (found[:, None, axis] - found[None, :, axis] for axis in (0, 1))
        close = dx * dx + dy * dy < limits.radius * limits.radius
        assert close.sum() == len(found)  # each is near itself alone


CALLS = 500


@pytest.mark.slow
@every_ledger
def test_reading_while_another_thread_writes_works(make):
    ledger, done, point = make(), threading.Event(), np.array([[0.1, 0.1]])

    def write() -> None:
        for i in range(CALLS):
            ledger.judge(f"client {i}", [i], point, Limits())
            ledger.judge("a", [i], point, Limits())
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=write)
    try:
        thread.start()
        while not done.is_set():
            names = list(ledger.clients())
            assert names == sorted(names)
            classes = list(ledger.coverage("a"))
            assert classes == list(range(len(classes)))
            assert all(len(found) == 1 for found in ledger.records("a").values())
    finally:
        done.wait(60)
        thread.join()
        sys.setswitchinterval(interval)
    assert len(list(ledger.clients())) == CALLS + 1


@every_ledger
def test_points_of_any_precision_are_judged_and_kept_as_doubles(make):
    ledger = make()
    rim = np.array(
        [[np.nextafter(np.longdouble(1), np.longdouble(0)), 0]], np.longdouble
    )  # as a double it is on the rim
    assert ledger.judge("a", np.array([0]), rim, Limits()).letters == "A"
    ledger.judge("a", np.array([0]), np.array([[0.5, 0.5]], np.longdouble), Limits())
    assert ledger.records("a")[0].dtype == np.float64
    ledger.close()
