"""Ranks among calibration scores, by counting: ties, the margin, the twin's floor, and classes of few images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.sentinel.ranks import Ranking, robust_spreads
from tests.reference.bets import floor_of, ranks_of

CLASSES = 3
score_of = st.one_of(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.floats(-3, 3, width=32))  # some of them tie
row_of = st.tuples(st.integers(0, CLASSES - 1), st.tuples(score_of, score_of))
margin_of = st.sampled_from([0.0, 0.2, 10.0])


def columns(rows: list) -> tuple[np.ndarray, np.ndarray]:
    """Rows (label, scores) as labels (n,) and scores (n, 2)."""
    return np.array([k for k, _ in rows], np.int64), np.array([s for _, s in rows], np.float64).reshape(-1, 2)


@settings(max_examples=200)
@given(st.lists(row_of, max_size=30), st.lists(row_of, min_size=1, max_size=10), margin_of)
def test_ranks_are_counts_of_calibration_scores(calibration, asked, margin):
    labels, scores = columns(calibration)
    spreads = robust_spreads(labels, scores, CLASSES)
    ranking = Ranking(labels, scores, spreads, CLASSES, margin)
    ranks = ranking.rank(*columns(asked))
    for i, (k, values) in enumerate(asked):
        for j, value in enumerate(values):
            of_class = scores[labels == k, j].tolist()
            expected = ranks_of(of_class, value, margin * spreads[k, j])
            assert (ranks.bet[i, j], ranks.count[i, j]) == expected
            assert ranks.above[i, j] == (value > floor_of(of_class))
            assert ranks.bet[i, j] >= ranks.count[i, j]
            assert ranking.sizes[k] == len(of_class)
            assert ranking.top_sizes[k, j] == sum(c > floor_of(of_class) for c in of_class)


@pytest.mark.parametrize(("n", "above"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (10, 3), (100, 30)])
def test_the_twin_looks_at_three_in_ten_of_different_scores(n, above):
    ranking = Ranking(np.zeros(n, np.int64), np.arange(float(n))[:, None], np.zeros((1, 1)), 1, 0.0)
    assert ranking.top_sizes.tolist() == [[above]]
    assert ranking.rank(np.zeros(1, np.int64), np.array([[1e9]])).above.item() == (above > 0)


def test_equal_scores_leave_the_twin_nothing_to_bet_on():
    ranking = Ranking(np.zeros(50, np.int64), np.ones((50, 1)), np.zeros((1, 1)), 1, 0.2)
    assert ranking.top_sizes.tolist() == [[0]]
    ranks = ranking.rank(np.zeros(3, np.int64), np.array([[0.0], [1.0], [2.0]]))
    assert ranks.bet.ravel().tolist() == [50, 50, 0]
    assert ranks.count.ravel().tolist() == [50, 0, 0]


def test_spreads_are_robust_standard_deviations():
    rng = np.random.default_rng(0)
    scores = np.stack([rng.normal(5, 2, 4000), rng.standard_cauchy(4000)], 1)
    spreads = robust_spreads(np.zeros(4000, np.int64), scores, 2)
    assert spreads[0] == pytest.approx([2.0, 2 / 1.35], rel=0.1)
    assert spreads[1].tolist() == [0, 0]  # no image
    assert robust_spreads(np.array([0]), np.array([[7.0]]), 1).item() == 0  # one image
    assert robust_spreads(np.array([0, 0]), np.array([[1.0], [3.7]]), 1).item() == pytest.approx(1.0)


@settings(max_examples=100)
@given(st.lists(row_of, min_size=1, max_size=30), st.lists(row_of, min_size=1, max_size=10))
def test_a_margin_only_makes_the_rank_bet_with_larger(calibration, asked):
    labels, scores = columns(calibration)
    spreads = robust_spreads(labels, scores, CLASSES)
    plain, lowered = (Ranking(labels, scores, spreads, CLASSES, m).rank(*columns(asked)) for m in (0.0, 0.5))
    assert (lowered.bet >= plain.bet).all()
    assert (lowered.count == plain.count).all()
    assert (lowered.above == plain.above).all()
