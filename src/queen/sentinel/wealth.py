"""Wealth: what a client's bets have won so far, as a mixture over all times at which an attack may have begun.

Every lane and stake has a purse A, which each bet of the lane changes by

    A <- (A + w_t) f / max(1, den),   w_t = .5 / (t (t + 1)), and .5 more at t = 1,

where t counts the bets of the lane over all classes (a twin has a clock of its own) and `den` is the exact mean of f
(see `bets`). The weights add up to 1 and no factor is better than fair given the ranks of the same score so far, so the
mean over a score's purses ever reaches S/p with probability at most p/S, and any of S scores with at most p. Scores are
not averaged: knowing the ranks of one score, bets on another need not be fair. The largest of the scores' sums is
compared with the bar. Purses are float32 and counts whole numbers, changed in one fixed order, so every store decides
alike.

Why no bet costs less than 1: who sends a single true class looks better than usual in its own predicted class and worse
in the others, where only its misclassified images go. A price that falls in its own class would forget the former.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from queen.core.sensitivity import Floats
from queen.sentinel.bets import LANES, SHAPES, STAKES, Bets, Ints

MOST = 2**28 - 1  # bets on one class: what every store can count; from then on the class places none
EAGER = np.array(STAKES)
REST = 1 - EAGER  # what is not at stake


@dataclass
class Winnings:
    """What one client or group has won in one test with S scores.

    `clocks` (1 + S): bets placed, by the scores together and by the twin of each. `purses` (S * LANES * stakes,).
    `counts`: for every class used (1 + S + S * LANES,) whole numbers: its bets, those of each score's twin, and for
    every lane the sum of q over them.
    """

    clocks: Ints
    purses: NDArray[np.float32]
    counts: dict[int, Ints] = field(default_factory=dict)

    @classmethod
    def empty(cls, scores: int) -> Winnings:
        """Nothing won yet."""
        return cls(np.zeros(1 + scores, np.int64), np.zeros(scores * LANES * len(STAKES), np.float32))

    @property
    def wealth(self) -> float:
        """What operators see, in units of `Test.bar` / size: an S-th of the best score's mean purse."""
        return largest_sum(self.purses[None]).item() / len(self.purses)


def place_bets(
    winnings: Sequence[Winnings], owner: NDArray[np.intp], labels: Ints, bets: Bets, bar: float
) -> list[int | None]:
    """Place the bets of all rows, in order, for the accounts that own them; for each the row that reached the bar.

    `owner` (n,) indexes `winnings`. An account places no bet after the row that reached the bar. Everything is computed
    for the whole batch at once, except for the purses, which depend on each other from bet to bet.
    """
    if len(owner) == 1 and len(winnings) == 1:
        return [0 if _place_one(winnings[0], int(labels[0]), bets) >= bar else None]
    scores, rows = bets.test.scores, range(len(owner))
    owners, classes = owner.tolist(), labels.tolist()
    key_of: dict[tuple[int, int], int] = {}  # numbers every account and class
    of_key = np.array([key_of.setdefault(key, len(key_of)) for key in zip(owners, classes, strict=True)])
    no_counts = np.zeros(1 + scores + scores * LANES, np.int64)
    begun = np.array([winnings[i].counts.get(label, no_counts) for i, label in key_of])[of_key]
    placed = _placed(bets)
    if begun[:, 0].max() + len(owner) > MOST:
        placed *= (begun + _running(placed, of_key))[:, :1] < MOST
    counts = begun + _running(placed, of_key)  # (n, columns), before each row
    steps = placed[:, : 1 + scores]
    clocks = np.array([one.clocks for one in winnings])[owner] + _running(steps, owner)
    purses = np.array([one.purses for one in winnings])
    history = _play(purses, owner, _factors(bets, counts, steps), _fresh_money(clocks, steps))
    over = np.flatnonzero(largest_sum(history) >= bar)
    reached = {owners[row]: row for row in over[::-1].tolist()}
    valid = [row for row in rows if row <= reached.get(owners[row], row)] if reached else rows
    for i, row in {owners[row]: row for row in valid}.items():  # the last one of each
        winnings[i].purses, winnings[i].clocks = history[row].copy(), clocks[row] + steps[row]
    for (i, label), row in {(owners[row], classes[row]): row for row in valid}.items():
        winnings[i].counts[label] = counts[row] + placed[row]
    return [reached.get(i) for i in range(len(winnings))]


def _place_one(one: Winnings, label: int, bets: Bets) -> float:
    """Place a single bet; returns the largest sum.

    The same numbers by plain Python: a server's single queries come when the network has just filled the caches, and
    every call to numpy then takes several times as long.
    """
    scores = bets.test.scores
    counts = one.counts[label].tolist() if label in one.counts else [0] * (1 + scores + scores * LANES)
    sizes, totals, ranks, sums = (numbers[0].tolist() for numbers in (bets.size, bets.total, bets.bet, bets.count))
    clocks, purses = one.clocks.tolist(), one.purses.tolist()
    money = [0.5 / (t * (t + 1.0)) + (0.5 if t == 1.0 else 0.0) for t in (clock + 1.0 for clock in clocks)]
    after = counts.copy()
    for lane, size in enumerate(sizes):
        if size == 0 or counts[0] >= MOST:
            continue
        score, shape = divmod(lane, LANES)
        clock, column = 0 if shape < len(SHAPES) else 1 + score, 1 + scores + lane
        unit = size / totals[lane]
        gain = unit * ranks[lane]
        mean = max(1.0, unit * (totals[lane] + counts[column]) / (size + counts[clock]))
        for i, stake in enumerate(STAKES, len(STAKES) * lane):
            factor = (1 - stake + stake * gain) / (1 - stake + stake * mean)
            purses[i] = (purses[i] + money[clock]) * factor
        after[column] += sums[lane]
        after[clock], clocks[clock] = counts[clock] + 1, int(one.clocks[clock]) + 1
    with np.errstate(over="ignore"):
        one.purses = np.array(purses, np.float64).astype(np.float32)
    one.clocks, one.counts[label] = np.array(clocks, np.int64), np.array(after, np.int64)
    largest = 0.0
    for of_score in one.purses.reshape(scores, -1).tolist():
        total = 0.0
        for purse in of_score:  # not sum(), which since Python 3.12 corrects rounding that `largest_sum` does not
            total += purse
        largest = max(largest, total)
    return largest


def largest_sum(purses: NDArray[np.float32]) -> Floats:
    """(n,) the largest of the scores' sums in every row of purses (n, S * LANES * stakes).

    Each is summed from its first purse to its last: numpy's own sum has another order on every CPU.
    """
    by_score = purses.reshape(len(purses), -1, LANES * len(STAKES))
    largest: Floats = np.cumsum(by_score, axis=2, dtype=np.float64)[:, :, -1].max(1)
    return largest


@lru_cache
def _clock_of_lane(scores: int) -> Ints:
    """(S * LANES,) which clock each lane goes by: the shared one, or that of its score's twin."""
    twins = np.repeat(np.arange(1, scores + 1), LANES).reshape(scores, LANES)
    twins[:, : len(SHAPES)] = 0
    return twins.reshape(-1)


def _placed(bets: Bets) -> Ints:
    """(n, columns) what each row adds to the counts of its class: 1 for every clock that ticks, q for every lane."""
    on = bets.size > 0
    placed = np.empty((len(on), 1 + bets.test.scores + on.shape[1]), np.int64)
    placed[:, 0] = on[:, 0]
    placed[:, 1 : 1 + bets.test.scores] = on[:, LANES - 1 :: LANES]
    np.multiply(bets.count, on, out=placed[:, 1 + bets.test.scores :])
    return placed


def _running(numbers: Ints, of: NDArray[np.intp]) -> Ints:
    """(n, columns) sums over the earlier rows that have the same number in `of`."""
    if len(of) == 1:
        return np.zeros_like(numbers)
    if not of.any():  # all rows are of one account
        return np.cumsum(numbers, axis=0) - numbers
    order = np.argsort(of, kind="stable")
    sorted_of, sorted_numbers = of[order], numbers[order]
    sums = np.cumsum(sorted_numbers, axis=0) - sorted_numbers
    running = np.empty_like(sums)
    running[order] = sums - sums[np.searchsorted(sorted_of, sorted_of)]
    return running


def _factors(bets: Bets, counts: Ints, steps: Ints) -> Floats:
    """(n, purses) what each purse is multiplied by: f / max(1, den), and 1 in a lane that does not bet."""
    scores = steps.shape[1] - 1
    clock = _clock_of_lane(scores)
    size, total = np.maximum(bets.size, 1), np.maximum(bets.total, 1)
    unit = size / total
    gain = unit * bets.bet
    mean = np.maximum(1.0, unit * (total + counts[:, 1 + scores :]) / (size + counts[:, clock]))
    factors: Floats = (REST + EAGER * gain[:, :, None]) / (REST + EAGER * mean[:, :, None])
    factors[steps[:, clock] == 0] = 1.0
    return factors.reshape(len(steps), -1)


def _fresh_money(clocks: Ints, steps: Ints) -> Floats:
    """(n, purses) w_t of a bet that is the (clocks + 1)-th, and 0 in a lane that does not bet."""
    time = clocks + 1.0
    money: Floats = (0.5 / (time * (time + 1)) + 0.5 * (clocks == 0)) * (steps > 0)
    return money[:, np.repeat(_clock_of_lane(clocks.shape[1] - 1), len(STAKES))]


def _play(purses: NDArray[np.float32], owner: NDArray[np.intp], factors: Floats, fresh: Floats) -> NDArray[np.float32]:
    """(n, purses) every account's purses after each of its rows; accounts play side by side, one row each a round."""
    rows = len(owner)
    history = np.empty((rows, purses.shape[1]), np.float32)
    with np.errstate(over="ignore"):  # beyond the bar nothing counts any more
        if len(purses) == 1:
            purse, both = purses[0], np.empty(purses.shape[1])
            for after, money, factor in zip(history, fresh, factors, strict=True):
                np.add(purse, money, out=both)
                np.multiply(both, factor, out=both)
                after[:] = both  # rounds
                purse = after
            return history
        turn = _running(np.ones((rows, 1), np.int64), owner)[:, 0]
        by_turn = np.argsort(turn, kind="stable")
        for chosen in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
            players = owner[chosen]
            purses[players] = history[chosen] = ((purses[players] + fresh[chosen]) * factors[chosen]).astype(np.float32)
    return history
