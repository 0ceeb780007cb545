"""Clients of all kinds against calibrations of all kinds: goal 28 of qa/ in seconds, and the traps of the method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from qa.sentinel.validity import DEFECTS, FUSSY, LEVELS, SECONDS, Plan, broken, checks_of, simulate
from qa.serving.scenario import failed
from queen.sentinel.bets import Bets, Betting, Test
from queen.sentinel.ranks import Ranking, robust_spreads
from queen.sentinel.wealth import Winnings, place_bets

TEST = Test(id=1, scores=1, alpha=1e-3, delta=0.05)
BAR = TEST.size / (TEST.alpha * TEST.delta)


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_benign_clients_are_rich_no_more_often_than_stated(margin):
    assert failed(checks_of(simulate(SECONDS, margin), "benign")) == []


def test_classes_of_few_images_are_no_excuse():
    draws = simulate(Plan(40, 9, 200, classes=12, least=1, most=5), 0.0)
    assert failed(checks_of(draws, "few images")) == []


@pytest.mark.parametrize("name", DEFECTS)
def test_a_wrong_price_is_noticed_at_every_level(name):
    with broken(DEFECTS[name]):
        checks = checks_of(simulate(SECONDS, 0.0), name)
    assert len(failed(checks)) == len(LEVELS)


def test_with_the_default_margin_fussy_clients_are_not_rich_either():
    draws = simulate(Plan(9, 10, 500, classes=100, most=30, habits=FUSSY), 0.2)
    assert failed(checks_of(draws, "fussy")) == []


def test_the_proof_needs_classes_that_do_not_depend_on_scores():
    """One calibration image u; a client who sees its own first score v goes on in the class if v < 2/3, else leaves it.

    Top rank or nothing, all at stake: the first bet pays 2 for v > u; the second 2 for w > u, and costs 4/3 after a win
    and 2/3 after a loss. If it went by its rank instead, the mean would be 1.
    """
    grid = (np.arange(90) + 0.5) / 90
    u, v, w = np.meshgrid(grid, grid + 1e-4, grid + 2e-4, indexing="ij")
    first = 2.0 * (v > u)
    second = first * 2.0 * (w > u) / np.where(v > u, 4 / 3, 2 / 3)
    assert first.mean() == pytest.approx(1, abs=0.02)
    assert second.mean() == pytest.approx(1, abs=0.02)
    by_score, by_rank = np.where(v < 2 / 3, second, first), np.where(v > u, second, first)
    assert by_score.mean() == pytest.approx(29 / 27, abs=0.02)
    assert by_rank.mean() == pytest.approx(1, abs=0.02)


# Traps of the method.


def betting(labels: Sequence[int], scores: np.ndarray, margin: float = 0.0) -> Betting:
    numbers, columns = np.asarray(labels, np.int64), np.asarray(scores, np.float64)[:, None]
    classes = int(numbers.max()) + 1
    return Betting(Ranking(numbers, columns, robust_spreads(numbers, columns, classes), classes, margin))


def accused(bets: Betting, labels: Sequence[int] | np.ndarray, scores: np.ndarray) -> int | None:
    """The query at which a client is accused."""
    numbers = np.asarray(labels, np.int64)
    arrays = bets.lanes(numbers, np.asarray(scores, np.float64)[:, None])
    placed = Bets(*arrays, digests=[], sketches=[], test=TEST, enforce=True)
    return place_bets([Winnings.empty(1)], np.zeros(len(numbers), np.intp), numbers, placed, BAR)[0]


def test_a_client_of_one_hard_class_is_not_accused():
    """Images of class 1 score higher, though they are as benign: only ranks among all classes would accuse."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [900, 300])
    scores = rng.normal(2.0 * labels, 1)
    per_class, together = betting(labels, scores), betting(np.zeros(1200), scores)
    for _ in range(20):
        client = rng.normal(2, 1, 500)
        assert accused(per_class, np.ones(500), client) is None
        assert accused(together, np.zeros(500), client) is not None


def test_a_retry_loop_must_not_bet():
    usual = betting(np.zeros(1000), np.random.default_rng(0).normal(size=1000))
    assert accused(usual, np.zeros(50), np.full(50, 3.5)) is not None  # if every retry bet
    assert accused(usual, [0], np.array([3.5])) is None  # only the first does


def test_the_twin_sees_through_cover_that_is_too_central():
    rng = np.random.default_rng(0)
    usual = betting(np.zeros(2000), rng.normal(size=2000))
    for _ in range(5):
        stream = rng.normal(-2, 0.5, (100, 11))
        stream[:, -1] = rng.normal(2.5, 1, 100)  # every eleventh query is an attack
        alarm = accused(usual, np.zeros(1100), stream.ravel())
        assert alarm is not None
        assert alarm < 11 * 60


def test_good_will_is_no_credit():
    """After 2,000 benign queries an attack is noticed nearly as soon as one by a stranger."""
    rng = np.random.default_rng(0)
    usual = betting(np.zeros(1000), rng.normal(size=1000))
    waits = []
    for warm_up in (0, 2000):
        of_clients = []
        for _ in range(10):
            stream = np.concatenate([rng.normal(size=warm_up), rng.normal(2.5, 1, 300)])
            alarm = accused(usual, np.zeros(len(stream)), stream)
            assert alarm is not None
            assert alarm >= warm_up
            of_clients.append(alarm - warm_up)
        waits.append(np.median(of_clients))
    assert waits[0] < 25
    assert waits[1] < 3 * waits[0]


def two_values(rng: np.random.Generator, count: int) -> np.ndarray:
    return (rng.random(count) < 0.2).astype(float)


ODD = {
    "Cauchy": (200, np.random.Generator.standard_cauchy),
    "two values": (200, two_values),
    "all equal": (200, lambda rng, count: np.ones(count)),
    "steps wider than the spread": (200, lambda rng, count: np.floor(rng.normal(size=count))),
    "one image": (1, np.random.Generator.standard_normal),
    "three images": (3, np.random.Generator.standard_normal),
}


@pytest.mark.parametrize("law", ODD)
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_odd_scores_accuse_no_benign_client(law, margin):
    rng = np.random.default_rng(0)
    images, draw = ODD[law]
    for _ in range(20):
        usual = betting(np.zeros(images), draw(rng, images), margin)
        assert accused(usual, np.zeros(1000), draw(rng, 1000)) is None
