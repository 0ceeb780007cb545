"""ModelGuard-W: the batched solver finds what a linear program solver finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed.rivals import answer_by_lp
from queen.defenses import modelguard_w
from queen.errors import OptionError
from tests.reference.modelguard import MARGIN, costs, minimum_by_highs
from tests.support.defenses import F64, all_kinds, keeps_top, odd_rows, simplex, vectors

FEASIBLE, OPTIMAL = 1e-9, 1e-7


def violation(x: np.ndarray, y: np.ndarray, epsilon: float) -> float:
    """By how much an answer (K,) breaks the worst of the constraints."""
    others = np.delete(x, np.argmax(y))
    lead = x[np.argmax(y)] - others.max()
    return max(abs(x.sum() - 1), -x.min(), x.max() - 1, np.abs(x - y).sum() - epsilon, MARGIN - lead)


def assert_solved(y: np.ndarray, epsilon: float) -> None:
    """Compare minima and not answers: where classes tie there are several."""
    answers = modelguard_w.perturb(torch.from_numpy(y), epsilon=epsilon).numpy()
    for x, row in zip(answers, y, strict=True):
        assert violation(x, row, epsilon) <= FEASIBLE
        assert abs(costs(row) @ x - minimum_by_highs(row, epsilon)) <= OPTIMAL


@pytest.mark.parametrize(
    ("y", "epsilon", "answer"),
    [
        ([0.7, 0.2, 0.1], 1.0, [0.3334, 0.3333, 0.3333]),
        ([0.7, 0.2, 0.1], 0.4, [0.5, 0.2, 0.3]),
        ([0.4, 0.3, 0.2, 0.1], 1.0, [0.3334, 0, 0.3333, 0.3333]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_fixed_vectors(y, epsilon, answer, dtype):
    got = modelguard_w.perturb(torch.tensor([y], dtype=dtype), epsilon=epsilon)
    assert got[0].tolist() == pytest.approx(answer, abs=1e-6)


def test_mass_goes_to_the_least_likely_class_until_it_nearly_ties():
    y = torch.tensor([[0.97, 0.01, 0.005, 0.004, 0.003, 0.003, 0.002, 0.0012, 0.0011, 0.0007]], dtype=F64)
    got = modelguard_w.perturb(y)[0]
    assert got[[0, -1]].tolist() == pytest.approx([0.47, 0.4699], abs=1e-12)
    assert torch.equal(got[1:8], y[0, 1:8])


def test_the_top_of_a_flat_row_may_rise():
    """A higher top lifts the cap of all others."""
    y = torch.full((1, 6), 0.2, dtype=F64)
    y[0, -1] = 1e-9
    y = y / y.sum()
    assert modelguard_w.perturb(y, epsilon=0.6)[0, 0] > y[0, 0] + 0.05


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize(("classes", "rows"), [(2, 30), (3, 30), (10, 30), (100, 4)])
def test_the_solver_finds_the_minimum(classes, rows, epsilon):
    assert_solved(all_kinds(classes, rows).numpy(), epsilon)


@pytest.mark.parametrize("epsilon", [modelguard_w.LEAST_EPSILON, 1e-3, 0.05, 1.9, 2.0, 5.0])
@pytest.mark.parametrize("classes", [2, 5, 12])
def test_the_solver_finds_the_minimum_for_other_distances(classes, epsilon):
    assert_solved(all_kinds(classes, 5).numpy(), epsilon)


@pytest.mark.slow
@settings(max_examples=300)
@given(vectors(), st.one_of(st.sampled_from([0.3, 1.0]), st.floats(2e-4, 2)))
def test_the_solver_finds_the_minimum_for_anything(y, epsilon):
    assert_solved(y[None], epsilon)


def test_worse_answers_would_be_noticed():
    """The comparison is not vacuous: y itself is feasible and far from the minimum."""
    y = np.array([0.7, 0.2, 0.1])
    assert violation(y, y, 1.0) <= FEASIBLE
    assert costs(y) @ y - minimum_by_highs(y, 1.0) > 0.1
    assert violation(np.array([0.2, 0.4, 0.4]), y, 1.0) > 0.1


@pytest.mark.parametrize("classes", [2, 3, 10, 200])
def test_even_rows_that_tie_everywhere_have_an_answer_from_the_least_epsilon_on(classes):
    y = torch.full((1, classes), 1 / classes, dtype=F64)
    got = modelguard_w.perturb(y, epsilon=modelguard_w.LEAST_EPSILON)
    assert violation(got[0].numpy(), y[0].numpy(), modelguard_w.LEAST_EPSILON) <= FEASIBLE
    assert got.argmax(1).item() == 0


def test_below_it_there_may_be_none():
    flat = np.full(10, 0.1)
    with pytest.raises(AssertionError, match="infeasible"):
        minimum_by_highs(flat, 1e-4)
    with pytest.raises(OptionError, match=r"at least 0\.0002"):
        modelguard_w.perturb(torch.from_numpy(flat)[None], epsilon=1e-4)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("classes", [2, 10, 300])
def test_float32_answers_keep_the_label_by_the_margin(classes, epsilon):
    y = all_kinds(classes, 200, torch.float32)
    got = modelguard_w.perturb(y, epsilon=epsilon)
    assert keeps_top(y, got)
    top = got.topk(2, dim=1).values.double()
    assert (top[:, 0] - top[:, 1]).min() >= MARGIN - 1e-7
    assert ((got - y).double().abs().sum(1) <= epsilon + 1e-6 * classes).all()


def test_chunks_do_not_matter(monkeypatch):
    y = torch.cat([simplex(300, 10), odd_rows(10)])
    whole = modelguard_w.perturb(y)
    monkeypatch.setattr(modelguard_w, "CHUNK", 70)
    assert torch.equal(modelguard_w.perturb(y), whole)


@pytest.mark.parametrize("classes", [10, 1000])
def test_few_caps_are_looked_at(classes, monkeypatch):
    """Far fewer than there are pieces, or the search would not end in time."""
    monkeypatch.setattr(modelguard_w, "MOST_STEPS", 25)
    y = all_kinds(classes, 50)
    limited = modelguard_w.perturb(y)
    monkeypatch.undo()
    assert torch.equal(limited, modelguard_w.perturb(y))
    monkeypatch.setattr(modelguard_w, "MOST_STEPS", 1)
    assert not torch.equal(limited, modelguard_w.perturb(y))


def test_the_benchmarks_program_is_the_same():
    for row in simplex(10, 10).numpy():
        x = answer_by_lp(row, 1.0)
        assert violation(x, row, 1.0) <= 1e-7
        assert costs(row) @ x == pytest.approx(minimum_by_highs(row, 1.0), abs=OPTIMAL)
