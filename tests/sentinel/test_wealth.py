"""Wealth: batches against one query at a time, starting times, what a class may bet, and rounding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.sentinel import wealth
from queen.sentinel.bets import LANES, STAKES, Bets, Betting, Test, shape_table
from queen.sentinel.ranks import Ranking, robust_spreads
from queen.sentinel.wealth import MOST, Winnings, largest_sum, place_bets
from tests.reference import bets as reference
from tests.reference.bets import Player

CLASSES = 4


def bets_of(arrays: tuple[np.ndarray, ...], scores: int) -> Bets:
    count = len(arrays[0])
    return Bets(*arrays, [0] * count, [()] * count, Test(1, scores, 1e-3, 0.05), enforce=True)


def random_bets(seed: int, count: int, scores: int, *, foreign: float = 0.0) -> tuple[np.ndarray, Bets]:
    """Labels and bets of queries against a small calibration: classes without images, of one, of many, some ties."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([1, 2, 3], [1, 12, 60])
    calibration = np.round(rng.normal(size=(73, scores)), 1)
    ranking = Ranking(labels, calibration, robust_spreads(labels, calibration, CLASSES), CLASSES, 0.2)
    asked = rng.integers(0, CLASSES, count)
    scored = np.round(rng.normal(size=(count, scores)), 1) + foreign * (rng.random((count, 1)) < 0.7)
    return asked, bets_of(Betting(ranking).lanes(asked, scored), scores)


def assert_alike(one: Winnings, player: Player) -> None:
    """Every number the same, bit for bit."""
    scores = player.scores
    assert one.purses.tolist() == [p for s in player.purses for lane in s for p in lane]
    assert one.clocks.tolist() == [player.clocks[0][0], *(clocks[-1] for clocks in player.clocks)]
    for label, numbers in one.counts.items():
        bets, sums = player.bets[label], player.sums[label]
        expected = [bets[0][0], *(of[-1] for of in bets), *(v for of in sums for v in of)]
        assert numbers.tolist() == expected
        assert len(expected) == 1 + scores + scores * LANES
    assert set(one.counts) == set(player.bets)


def play_one_by_one(players: list[Player], owner: np.ndarray, labels: np.ndarray, bets: Bets, bar: float) -> None:
    for row, (i, label) in enumerate(zip(owner.tolist(), labels.tolist(), strict=True)):
        numbers = [tuple(getattr(bets, name)[row, lane] for name in ("size", "total", "bet", "count"))
                   for lane in range(bets.size.shape[1])]  # fmt: skip
        plain = [tuple(int(v) for v in lane) for lane in numbers]
        lanes = [plain[s * LANES : (s + 1) * LANES] for s in range(bets.test.scores)]
        players[i].play(row, label, lanes, bar)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from([np.inf, 1e6, 40.0, 12.0]),
    st.sampled_from([0.0, 2.0]),
)
def test_batches_cut_anywhere_are_one_query_after_the_other(seed, scores, accounts, cuts, bar, foreign):
    count = 60
    labels, bets = random_bets(seed, count, scores, foreign=foreign)
    owner = np.random.default_rng(seed).integers(0, accounts, count)
    players = [Player(scores) for _ in range(accounts)]
    play_one_by_one(players, owner, labels, bets, bar)
    every = [Winnings.empty(scores) for _ in range(accounts)]
    reached: list[int | None] = [None] * accounts
    edges = [0, *sorted(cuts), count]
    for first, last in pairwise(edges):
        # Whoever has reached the bar is not asked again, as in a ledger.
        rows = [row for row in range(first, last) if reached[owner[row]] is None]
        if not rows:
            continue
        numbers = sorted(set(owner[rows].tolist()))
        local = np.array([numbers.index(i) for i in owner[rows]])
        some = place_bets([every[i] for i in numbers], local, labels[rows], bets.take(rows), bar)
        for i, row in zip(numbers, some, strict=True):
            reached[i] = None if row is None else rows[row]
    assert reached == [player.reached for player in players]
    for one, player in zip(every, players, strict=True):
        assert_alike(one, player)


@pytest.mark.parametrize("foreign", [0.0, 2.0])
@pytest.mark.parametrize("scores", [1, 3])
def test_single_queries_are_a_batch(scores, foreign):
    """They take a way of their own through plain Python."""
    labels, bets = random_bets(11, 200, scores, foreign=foreign)
    together, apart = Winnings.empty(scores), Winnings.empty(scores)
    [reached] = place_bets([together], np.zeros(200, np.intp), labels, bets, 1e6)
    alarms = []
    for row in range(200 if reached is None else reached + 1):
        alarms += place_bets([apart], np.zeros(1, np.intp), labels[row : row + 1], bets.take([row]), 1e6)
    assert (reached is not None) == (alarms[-1] == 0)
    assert not any(alarm == 0 for alarm in alarms[:-1])
    assert (apart.purses == together.purses).all()
    assert (apart.clocks == together.clocks).all()
    assert apart.counts.keys() == together.counts.keys()
    assert all((apart.counts[label] == numbers).all() for label, numbers in together.counts.items())


def test_an_attack_reaches_the_bar_and_the_rows_after_it_change_nothing():
    labels, bets = random_bets(1, 200, 2, foreign=3.0)
    one, until = Winnings.empty(2), Winnings.empty(2)
    owner = np.zeros(200, np.intp)
    (row,) = place_bets([one], owner, labels, bets, 1000.0)
    assert row is not None
    assert 3 < row < 100
    place_bets([until], owner[: row + 1], labels[: row + 1], bets.take(list(range(row + 1))), np.inf)
    assert (one.purses == until.purses).all()
    assert (one.clocks == until.clocks).all()
    assert {k: v.tolist() for k, v in one.counts.items()} == {k: v.tolist() for k, v in until.counts.items()}
    assert one.wealth * len(one.purses) >= 1000


@pytest.mark.parametrize("accounts", [1, 3])
def test_a_class_places_no_more_bets_than_stores_can_count(monkeypatch, accounts):
    for module in (wealth, reference):
        monkeypatch.setattr(module, "MOST", 5)
    labels, bets = random_bets(5, 150, 2)
    owner = np.arange(150) % accounts
    players = [Player(2) for _ in range(accounts)]
    play_one_by_one(players, owner, labels, bets, np.inf)
    every = [Winnings.empty(2) for _ in range(accounts)]
    for rows in (list(range(20)), list(range(20, 150))):
        place_bets(every, owner[rows], labels[rows], bets.take(rows), np.inf)
    for one, player in zip(every, players, strict=True):
        assert_alike(one, player)
        assert {int(numbers[0]) for label, numbers in one.counts.items() if label} == {5}


def test_a_class_may_place_all_bets_that_stores_can_count():
    assert MOST == 2**28 - 1
    labels, bets = random_bets(5, 1, 1)
    labels[:] = 3
    one = Winnings.empty(1)
    place_bets([one], np.zeros(1, np.intp), labels, bets, np.inf)
    one.counts[3][0] = MOST
    before = one.purses.copy(), one.counts[3].copy(), one.clocks.copy()
    place_bets([one], np.zeros(1, np.intp), labels, bets, np.inf)
    for after, numbers in zip((one.purses, one.counts[3], one.clocks), before, strict=True):
        assert (after == numbers).all()
    with_sums = MOST * 16 * int(np.sqrt(2**24))  # the most a power shape pays, for a class of 2^24 images
    assert with_sums < 2**53  # so that a store that counts in doubles is exact


def test_money_for_all_starting_times_together_is_one():
    times = np.arange(100_000)[:, None]
    money = wealth._fresh_money(np.repeat(times, 2, 1), np.ones((len(times), 2), np.int64))
    assert money[0, 0] == 0.75
    assert (money.cumsum(0) <= 1).all()
    assert money[:, 0].sum() == pytest.approx(1, abs=1e-5)


def test_neutral_bets_leave_the_money_as_it_is():
    """One unit of good will is no credit: without winning anything, no purse ever holds more than 1."""
    size, total = (np.full((3000, LANES), v, np.int64) for v in (3, 3))
    ones = np.ones((3000, LANES), np.int64)  # q is 1 for every rank: f = den = 1
    one = Winnings.empty(1)
    place_bets([one], np.zeros(3000, np.intp), np.zeros(3000, np.int64), bets_of((size, total, ones, ones), 1), np.inf)
    assert one.purses.max() <= 1
    assert one.purses.min() > 0.999


def test_purses_are_a_mixture_over_starting_times():
    """A sum over all times at which an attack may begin, each with its own product of factors."""
    labels, bets = random_bets(9, 40, 1)
    one = Winnings.empty(1)
    place_bets([one], np.zeros(40, np.intp), labels, bets, np.inf)
    player, factors = Player(1), [[] for _ in range(LANES)]
    for row in range(40):
        label = int(labels[row])
        sums, placed = player.sums.setdefault(label, [[0] * LANES]), player.bets.setdefault(label, [[0] * LANES])
        for lane in range(LANES):
            size, total, bet, count = (
                int(getattr(bets, name)[row, lane]) for name in ("size", "total", "bet", "count")
            )
            if size:
                f = 0.4 + 0.6 * size / total * bet
                den = max(1.0, 0.4 + 0.6 * size / total * (total + sums[0][lane]) / (size + placed[0][lane]))
                factors[lane].append(f / den)
                sums[0][lane] += count
                placed[0][lane] += 1
    for lane, of_lane in enumerate(factors):
        weights = [0.5 / (t * (t + 1)) + 0.5 * (t == 1) for t in range(1, len(of_lane) + 1)]
        expected = sum(w * np.prod(of_lane[t:]) for t, w in enumerate(weights))
        assert one.purses[lane * len(STAKES) + 1] == pytest.approx(expected, rel=1e-5)


def test_looking_better_than_usual_buys_no_cheaper_bets():
    """Hundreds of queries at the last rank of their class, then one at the first: its price is that of the start."""
    table, total = shape_table(0, 99)
    ranks = np.array([99] * 300 + [0])
    lanes = {"size": 100, "total": total, "bet": table[ranks][:, None], "count": table[ranks][:, None]}
    arrays = {name: np.broadcast_to(value, (len(ranks), LANES)).astype(np.int64) for name, value in lanes.items()}
    bets = Bets(**arrays, digests=[0] * 301, sketches=[()] * 301, test=Test(1, 1, 1e-3, 0.05), enforce=True)
    one, before = Winnings.empty(1), Winnings.empty(1)
    labels, owner = np.zeros(301, np.int64), np.zeros(301, np.intp)
    place_bets([before], owner[:300], labels[:300], bets.take(list(range(300))), np.inf)
    place_bets([one], owner, labels, bets, np.inf)
    money = 0.5 / (301 * 302)
    gain = np.array([1 - e + e * 10 for e in STAKES])
    assert one.purses.reshape(LANES, -1) == pytest.approx((before.purses.reshape(LANES, -1) + money) * gain, rel=1e-6)


def test_the_richest_score_counts_and_is_summed_in_order():
    purses = np.zeros((2, 3 * LANES * len(STAKES)), np.float32)
    purses[0, 10:20] = 1
    purses[0, 20:30] = 2
    purses[1, :10] = [1e8, *[1.0] * 9]
    assert largest_sum(purses).tolist() == [20, 1e8 + 9]
    one = replace(Winnings.empty(3), purses=purses[0])
    assert one.wealth == 20 / 30


def test_purses_are_float32_and_may_overflow():
    labels, bets = random_bets(3, 400, 1, foreign=9.0)
    labels = np.full(400, 3)
    bets = replace(bets, size=np.full_like(bets.size, 1000), total=np.ones_like(bets.total),
                   bet=np.ones_like(bets.bet), count=np.zeros_like(bets.count))  # fmt: skip
    one = Winnings.empty(1)
    (row,) = place_bets([one], np.zeros(400, np.intp), labels, bets, np.inf)
    assert one.purses.dtype == np.float32
    assert np.isinf(one.purses).any()
    assert row is not None


def test_rounding_moves_wealth_by_less_than_a_thousandth_in_ten_thousand_bets():
    """Half a unit of float32 at most for each bet, so after 10,000 bets less than one in 1,600."""
    labels, bets = random_bets(4, 10_000, 1)
    labels = np.full(10_000, 3)
    rounded = Winnings.empty(1)
    place_bets([rounded], np.zeros(10_000, np.intp), labels, bets, np.inf)
    placed = wealth._placed(bets)
    counts = np.cumsum(placed, axis=0) - placed
    steps = placed[:, :2]
    factors = wealth._factors(bets, counts, steps)
    money = wealth._fresh_money(np.cumsum(steps, axis=0) - steps, steps)
    exact = np.zeros(factors.shape[1])
    for row in range(10_000):
        exact = (exact + money[row]) * factors[row]
    assert rounded.purses == pytest.approx(exact, rel=1 / 1600)
