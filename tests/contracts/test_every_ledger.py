"""What every ledger must do; a new one joins LEDGERS and has to pass all of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.core.certify import records_bound
from queen.errors import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    LimitsError,
    NotFiniteError,
    QueenError,
    ShapeError,
)
from queen.ledger import Ledger, MemoryLedger, RedisLedger, SqliteLedger
from queen.ledger.rows import make_rows
from queen.options import Limits
from queen.types import Verdict
from tests.reference.judge import BruteForce, judge_stream
from tests.support.redis_server import shared_server

NUMBERS = count()


def redis_ledger() -> RedisLedger:
    """An empty ledger on a server that all tests of this process share."""
    return RedisLedger(shared_server().url, prefix=f"test-{next(NUMBERS)}", timeout=30)


LEDGERS: dict[str, Callable[[], Ledger]] = {
    "memory": MemoryLedger,
    "sqlite": lambda: SqliteLedger(":memory:"),
    "redis": redis_ledger,
}
every_ledger = pytest.mark.parametrize("make", LEDGERS.values(), ids=LEDGERS)

CLASSES = 3
below = float(np.nextafter(1, 0))
RIM = [(0.28, 0.96), (0.96, -0.28), (-0.6, 0.8), (1.0, 0.0), (0.0, -1.0), (below, 0.0), (0.0, 0.0), (-0.0, -0.0),
       (0.28, float(np.nextafter(0.96, 0))), (2**-0.5, 2**-0.5), (5e-324, 0.0), (1e200, -1e200),
       # where hypot and x*x + y*y disagree, either way
       (-0.8089281451572671, 0.5879075233167401), (0.9946128276123087, 0.1036596505350456)]  # fmt: skip
radius_of = st.sampled_from([0.02, 0.1, 0.25, 0.3, 0.5, 1.0, 2.0, 3.0]) | st.floats(0.01, 1.5)
threshold_of = st.sampled_from([0.0, 1e-9, 0.01, 0.0625, 0.2, 1.0, 1e9]) | st.floats(0, 0.5)
limits_of = st.builds(
    lambda radius, threshold: Limits(radius=radius, threshold=threshold),
    radius_of | st.tuples(*[radius_of] * CLASSES),
    threshold_of,
)
small = st.integers(-5, 5)
spot_of = st.one_of(
    st.tuples(st.just("grid"), small, small),
    st.tuples(st.just("rim"), st.integers(0, len(RIM) - 1), st.just(0)),
    st.tuples(st.just("free"), st.floats(-1.1, 1.1), st.floats(-0.8, 0.8)),
    st.tuples(st.just("near"), st.integers(0, 30), st.integers(0, 9)),
)
rows_of = st.lists(st.tuples(st.integers(0, CLASSES - 1), spot_of), min_size=1, max_size=24)
cuts_of = st.lists(st.integers(1, 8), max_size=12)


def place(rows: list, limits: Limits) -> tuple[list[int], np.ndarray]:
    """Rows to labels and points: multiples of the radius, the rim, anywhere, and steps from earlier points."""
    labels, points = [], []
    for label, (kind, a, b) in rows:
        r = limits.radius[label] if isinstance(limits.radius, tuple) else limits.radius
        x, y = (a * r, b * r) if kind == "grid" else RIM[a] if kind == "rim" else (a, b)
        if kind == "near":
            x, y = points[a % len(points)] if points else (0.25, 0.5)
            ulp = float(np.spacing(r))
            dx, dy = [(0, 0), (r, 0), (-r, 0), (0, r), (0, -r), (r - ulp, 0), (0, ulp - r), (r + ulp, 0),
                      (0.6 * r, 0.8 * r), (1e-9, 0)][b]  # fmt: skip
            x, y = x + dx, y + dy
        labels.append(label)
        points.append((float(x), float(y)))
    return labels, np.array(points)


def cut(count: int, sizes: list[int]) -> Iterator[slice]:
    start = 0
    for size in sizes:
        if start < count:
            yield slice(start, start + size)
            start += size
    if start < count:
        yield slice(start, count)


def random_stream(seed: int, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = rng.normal(0, 0.5, (rows, 2))
    points[::3] = points[rng.integers(0, rows, len(points[::3]))] + rng.normal(0, 0.01, (len(points[::3]), 2))
    return rng.integers(0, CLASSES, rows), points


def state(ledger: Ledger, client: str) -> tuple[dict, dict]:
    return ledger.coverage(client), {k: v.tolist() for k, v in ledger.records(client).items()}


# A batch of 24 rows is short, yet the rule has only pairs to get wrong; 1,000 streams reach every one of its corners.
many = settings(max_examples=1000, deadline=None, database=None, derandomize=True)
some = settings(many, max_examples=200)


@pytest.mark.slow
@every_ledger
@many
@given(limits=limits_of, rows=rows_of, sizes=cuts_of)
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
@every_ledger
@some
@given(limits=limits_of, rows=rows_of, owners=st.lists(st.integers(0, 2), min_size=24, max_size=24), sizes=cuts_of)
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


@every_ledger
@some
@given(calls=st.lists(st.tuples(limits_of, rows_of), min_size=2, max_size=4))
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


@pytest.mark.parametrize("seed", range(5))
def test_all_ledgers_agree_to_the_last_bit(seed):
    labels, points = random_stream(seed)
    limits = Limits(radius=0.03 + 0.02 * seed, threshold=0.05)
    seen = []
    for make in LEDGERS.values():
        ledger = make()
        judgement = ledger.judge("a", labels, points, limits)
        seen.append((judgement.letters, judgement.spent.tolist(), *state(ledger, "a")))
    assert all(one == seen[0] for one in seen)
    assert set(seen[0][0]) == set("ABCD")  # the stream meets every verdict


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
    for quarters in range(1, 204):
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


GOOD = np.array([[0.5, 0.5], [-0.5, 0.5]])
BAD_ROWS = {
    "labels of two dimensions": ([[0], [0]], GOOD, ShapeError),
    "points of three numbers": ([0, 0], np.zeros((2, 3)), ShapeError),
    "points of one dimension": ([0, 0], np.zeros(2), ShapeError),
    "more points than labels": ([0], GOOD, ShapeError),
    "labels that are no array": (0, GOOD, ShapeError),
    "no rows": (np.empty(0, int), np.empty((0, 2)), EmptyBatchError),
    "float labels": ([0.0, 1.0], GOOD, DtypeError),
    "bool labels": ([True, False], GOOD, DtypeError),
    "text labels": (["0", "1"], GOOD, DtypeError),
    "integer points": ([0, 0], np.zeros((2, 2), int), DtypeError),
    "complex points": ([0, 0], GOOD.astype(complex), DtypeError),
    "points that are objects": ([0, 0], GOOD.astype(object), DtypeError),
    "NaN": ([0, 0], np.array([[0.1, 0.1], [0.2, np.nan]]), NotFiniteError),
    "infinity": ([0, 0], np.array([[0.1, 0.1], [-np.inf, 0.2]]), NotFiniteError),
    "a negative label": ([0, -1], GOOD, LabelError),
    "a label beyond 32 bits": ([0, 2**31], GOOD, LabelError),
    "a label beyond 64 bits": (np.array([0, 2**64 - 1], np.uint64), GOOD, LabelError),
}


@every_ledger
@pytest.mark.parametrize(("labels", "points", "error"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused_and_change_nothing(make, labels, points, error):
    ledger = make()
    ledger.judge("a", [0], np.array([[0.0, 0.0]]), Limits())
    before = state(ledger, "a")
    with pytest.raises(error):
        ledger.judge("a", labels, points, Limits())
    with pytest.raises(error):
        ledger.judge("b", labels, points, Limits())
    assert state(ledger, "a") == before
    assert list(ledger.clients()) == ["a"]


@every_ledger
@pytest.mark.parametrize(
    ("limits", "error"),
    [(Limits(radius=(0.1, 0.1)), LabelError), (0.02, LimitsError), (None, LimitsError)],
    ids=["too few radii", "a number", "None"],
)
def test_bad_limits_are_refused_and_change_nothing(make, limits, error):
    ledger = make()
    with pytest.raises(error):
        ledger.judge("a", [0, 2], GOOD, limits)
    assert list(ledger.clients()) == []


BAD_CLIENTS = [7, None, b"a", "", "a\0b", "x" * 257, "é" * 129, "\ud800"]


@every_ledger
@pytest.mark.parametrize("client", BAD_CLIENTS, ids=lambda c: ascii(c)[:12])
def test_bad_clients_are_refused_and_change_nothing(make, client):
    ledger = make()
    with pytest.raises(ClientError):
        ledger.judge(client, [0, 0], GOOD, Limits())
    with pytest.raises(ClientError):
        ledger.judge_rows(make_rows(("good", client), [0, 0], [0, 0], GOOD, Limits()))
    with pytest.raises(ClientError):
        ledger.coverage(client)
    with pytest.raises(ClientError):
        ledger.records(client)
    assert list(ledger.clients()) == []


@every_ledger
@pytest.mark.parametrize(
    ("clients", "owner"),
    [(("a", "b"), [0, 2]), (("a", "b"), [-1, 0]), (("a", "b"), [0]), (("a", "b"), [0, 0, 0]), (("a", "b"), [[0, 1]]),
     (("a", "b"), [0.0, 1.5]), ((), None)],
    ids=["too high", "negative", "too few", "too many", "two dimensions", "not integer", "no client at all"],
)  # fmt: skip
def test_rows_without_a_proper_owner_are_refused(make, clients, owner):
    ledger = make()
    with pytest.raises(QueenError):
        ledger.judge_rows(make_rows(clients, owner, [0, 0], GOOD, Limits()))
    assert list(ledger.clients()) == []


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

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = ledger.records("a")
    assert "".join(letters).count("C") == sum(map(len, records.values())) > 0
    assert len("".join(letters)) == 6 * 200
    for found in records.values():
        dx, dy = (found[:, None, axis] - found[None, :, axis] for axis in (0, 1))
        close = dx * dx + dy * dy < limits.radius * limits.radius
        assert close.sum() == len(found)  # each is near itself alone


@pytest.mark.slow
@every_ledger
def test_reading_while_another_thread_writes_works(make):
    ledger, done, point = make(), threading.Event(), np.array([[0.1, 0.1]])

    def write() -> None:
        for i in range(2000):
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
    assert len(list(ledger.clients())) == 2001


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


@every_ledger
@pytest.mark.parametrize(
    ("labels", "points", "error"),
    [
        ([], [], EmptyBatchError),
        ([0, 0], [[0.1, 0.1], [0.2]], DtypeError),
        ([0], torch.tensor([[0.1, 0.1]], requires_grad=True), DtypeError),
        ([0], torch.tensor([[0.1, 0.1]], dtype=torch.bfloat16), DtypeError),
    ],
    ids=["nothing", "ragged", "with a gradient", "bfloat16"],
)
def test_what_is_no_array_of_points_is_refused(make, labels, points, error):
    ledger = make()
    with pytest.raises(error):
        ledger.judge("a", labels, points, Limits())
    ledger.close()
