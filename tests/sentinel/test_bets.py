"""Bets: shapes by their definition, fairness by enumerating every order of calibration images and queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product
from math import factorial, pi

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.sentinel.bets import LANES, SHAPES, Bets, Betting, Test, shape_table, share_of
from queen.sentinel.ranks import Ranking, robust_spreads
from tests.reference.bets import exact_factor, floor_of, lanes_of, ranks_of, shapes_of

SIZES = [0, 1, 2, 3, 4, 5, 9, 10, 19, 50, 99, 500, 5000]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("lane", range(LANES))
def test_a_shape_falls_and_its_mean_is_one(lane, n):
    q, total = shape_table(lane, n)
    assert q.dtype == np.int64
    assert q.tolist() == [*shapes_of(n, twin=False), *shapes_of(n, twin=True)][lane]
    assert (np.diff(q) <= 0).all()
    assert (q >= 0).all()
    assert q[0] > 0
    assert sum(Fraction(int(v) * (n + 1), total) for v in q) / (n + 1) == 1


def test_the_shapes_bet_on_a_tenth_on_three_tenths_and_on_a_power():
    assert [shape_table(lane, 99)[1] for lane in (0, 1, 3, 4)] == [10, 30, 10, 35]
    q, total = shape_table(2, 99)
    g = q * 100 / total
    u = np.arange(1, 101) / 100
    assert g == pytest.approx(u**-0.5 / np.mean(u**-0.5), rel=0.05)
    assert len(SHAPES) == 3


def orders(n: int, queries: int) -> Iterator[tuple[int, ...]]:
    """Every order of n calibration scores and then the queries: all equally likely if they are exchangeable."""
    return permutations(range(n + queries))


def wealth(
    scores: Sequence[float], n: int, stake: Fraction, lane: int, *, shift: float = 0.0, start: int = 0
) -> Fraction:
    """The exact product of f / den over the queries of one class, from the query `start` on, in one lane.

    The purses are divided by max(1, den), so they win this much at most.
    """
    calibration, queries = scores[:n], scores[n:]
    twin = lane >= len(SHAPES)
    floor = floor_of(calibration)
    among = [c for c in calibration if c > floor] if twin else calibration
    q = [*shapes_of(len(among), twin=False), *shapes_of(len(among), twin=True)][lane]
    past: list[int] = []
    won = Fraction(1)
    for time, score in enumerate(queries):
        if not among or (twin and not score > floor):
            continue
        bet, count = ranks_of(among, score, shift)
        if time >= start:
            won *= exact_factor(q, stake, bet, past)
        past.append(count)
    return won


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("stake", [Fraction(1, 5), Fraction(3, 5)])
@pytest.mark.parametrize(("n", "queries"), [(0, 2), (1, 1), (1, 3), (2, 3), (3, 2), (4, 2)])
def test_bets_are_exactly_fair(n, queries, stake, start):
    for lane in range(LANES):
        total = sum((wealth(order, n, stake, lane, start=start) for order in orders(n, queries)), Fraction(0))
        assert total == factorial(n + queries)


@pytest.mark.parametrize(("n", "queries"), [(2, 3), (4, 2)])
def test_each_bet_is_fair_given_the_ranks_before(n, queries):
    """Not only on average over everything: the mean of the last factor is 1 after every history of ranks."""
    for lane in range(LANES):
        after: dict[tuple[int, ...], list[Fraction]] = {}
        for order in orders(n, queries):
            history = tuple(ranks_of(order[:n], score, 0.0)[0] for score in order[n:-1])
            before, now = (wealth(order[:stop], n, Fraction(3, 5), lane) for stop in (-1, None))
            after.setdefault(history, []).append(now / before)
        assert {sum(factors) / len(factors) for factors in after.values()} == {1}


@pytest.mark.parametrize("values", [2, 3])
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("n", "queries"), [(1, 3), (2, 3), (4, 2)])
def test_with_ties_and_a_margin_wealth_is_at_most_fair(n, queries, values, shift):
    """For every multiset of few different values, over all its orders."""
    for lane in range(LANES):
        by_multiset: dict[tuple[int, ...], list[Fraction]] = {}
        for scores in product(range(values), repeat=n + queries):
            by_multiset.setdefault(tuple(sorted(scores)), []).append(
                wealth(scores, n, Fraction(3, 5), lane, shift=shift)
            )
        for won in by_multiset.values():
            assert sum(won) <= len(won)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 8), min_size=5, max_size=16), st.integers(1, 4), st.floats(0, 5), st.integers(0, LANES - 1)
)
def test_a_margin_never_makes_wealth_larger(scores, n, shift, lane):
    """The proof that a margin keeps the statement: with it a client is on every path poorer than without.

    The bet takes the rank of the lowered score, the sum in `den` that of the score as it is. So `den` is that of the
    test without margin, whose wealth is a martingale, and f is smaller. (Were the sum lowered too, early small bets
    would make later ones cheaper, and nothing would be left to compare with.)
    """
    with_margin, without = (wealth(scores, n, Fraction(3, 5), lane, shift=s) for s in (shift, 0.0))
    assert with_margin <= without


def test_scores_of_one_query_are_tests_of_their_own():
    """Why the scores' wealths are not averaged: given the ranks of one score, bets on another need not be fair.

    One calibration image u and a query v, uniform on 0..1. The second score is nearness to the middle, -|x - 1/2|. If
    the query is higher in the first score and the image further out, then u < 1/2, and the next query is higher than u
    with probability 5/6, where the ranks of the first score alone say 2/3.
    """
    grid = (np.arange(60) + 0.5) / 60
    u, v, following = np.meshgrid(grid, grid, grid, indexing="ij")
    apart = (u != v) & (u != following)
    higher = apart & (v > u)
    outside = higher & (abs(u - 0.5) > abs(v - 0.5) + 1e-9)
    assert (following > u)[higher].mean() == pytest.approx(2 / 3, abs=0.01)
    assert (following > u)[outside].mean() == pytest.approx(5 / 6, abs=0.01)


# The arrays for ledgers.

score_of = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(-3, 3))


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 2), score_of, score_of), max_size=40),
    st.lists(st.tuples(st.integers(0, 2), score_of, score_of), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.2]),
)
def test_the_lanes_of_a_batch_are_those_of_each_query(calibration, asked, margin):
    rows, queries = np.array(calibration, np.float64).reshape(-1, 3), np.array(asked, np.float64)
    labels, scores = rows[:, 0].astype(np.int64), rows[:, 1:]
    spreads = robust_spreads(labels, scores, 3)
    betting = Betting(Ranking(labels, scores, spreads, 3, margin))
    arrays = betting.lanes(queries[:, 0].astype(np.int64), queries[:, 1:])
    for i in range(len(queries)):  # single queries take a way of their own
        alone = betting.lanes(queries[i : i + 1, 0].astype(np.int64), queries[i : i + 1, 1:])
        assert all(one.dtype == np.int64 and (one[0] == many[i]).all() for one, many in zip(alone, arrays, strict=True))
    for i, (k, *values) in enumerate(asked):
        expected = [
            lane
            for j, value in enumerate(values)
            for lane in lanes_of(scores[labels == k, j].tolist(), value, margin * spreads[k, j])
        ]
        got = list(zip(*(array[i].tolist() for array in arrays), strict=True))
        assert [lane[0] for lane in got] == [lane[0] for lane in expected]
        assert [lane for lane in got if lane[0]] == [lane for lane in expected if lane[0]]


def test_chosen_rows_and_joined_batches():
    test = Test(id=1, scores=1, alpha=1e-3, delta=0.05)
    numbers = np.arange(15).reshape(3, 5)
    bets = Bets(numbers, numbers + 1, numbers + 2, numbers + 3, [7, 8, 9], [(0.0,), (1.0,), (2.0,)], test, True, 40)
    parts = [bets.take([2, 0]), bets.take([1])]
    joined = Bets.join(parts)
    assert joined.digests == [9, 7, 8]
    assert joined.sketches == [(2.0,), (0.0,), (1.0,)]
    for name, plus in (("size", 0), ("total", 1), ("bet", 2), ("count", 3)):
        assert (getattr(joined, name) == (numbers + plus)[[2, 0, 1]]).all()
    assert joined.test is test
    assert (joined.enforce, joined.after_alarm) == (True, 40)


# The bar.


def test_shares_of_all_calibrations_together_are_the_whole():
    numbers = np.arange(1, 10**6)
    shares = np.array([share_of(int(j), 1.0) for j in numbers[:1000]])
    assert shares == pytest.approx(6 / (pi**2 * numbers[:1000] ** 2), rel=1e-12)
    assert (6 / (pi**2 * numbers**2.0)).sum() == pytest.approx(1, abs=1e-6)
    assert shares.sum() < 1


def test_the_bar_is_that_of_a_score_that_must_do_without_the_others():
    test = Test(id=1, scores=3, alpha=1e-3, delta=0.05)
    assert test.size == 3 * LANES * 2 == 30
    assert test.bar(1) == pytest.approx(30 * 20_000 * pi**2 / 6)
    assert [test.bar(j) / test.bar(1) for j in (2, 3, 7)] == pytest.approx([4, 9, 49])
    assert sum(30 / test.bar(j) for j in range(1, 10**5)) == pytest.approx(1e-3 * 0.05, rel=1e-4)
    assert Test(id=1, scores=3, alpha=1e-3, delta=0.05, least=1e9).bar(1) == 30e9
    assert Test(id=1, scores=3, alpha=1e-3, delta=0.05, least=3.0).bar(1) == test.bar(1)
