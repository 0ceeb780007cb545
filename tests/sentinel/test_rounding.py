"""Rounded answers against a slow obvious version, in fractions: the sum, the label, the largest remainders."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from queen.sentinel.rounding import round_answers


def by_hand(row: list[float], digits: int) -> list[int]:
    """One row in units of 10^-digits: one unit after the other goes to whoever lost most."""
    exact = [Fraction(p) * 10**digits / sum(map(Fraction, row)) for p in row]
    units = [floor(e) for e in exact]
    for _ in range(10**digits - sum(units)):
        neediest = max(range(len(row)), key=lambda k: (exact[k] - units[k], -k))
        units[neediest] += 1
    label, top = row.index(max(row)), units.index(max(units))
    if top != label:
        units[label] += 1
        units[top] -= 1
    return units


def in_units(answers: Tensor, digits: int) -> np.ndarray:
    """Answers (n, K) as whole numbers; an error unless they are that, to the last bit."""
    units = np.rint(answers.double().numpy() * 10**digits).astype(int)
    assert torch.equal(answers, torch.from_numpy(units / 10**digits).to(answers))
    return units


def assert_rounded(honest: Tensor, digits: int) -> np.ndarray:
    rounded = round_answers(honest, digits)
    assert rounded.shape == honest.shape
    assert rounded.dtype == honest.dtype
    units = in_units(rounded, digits)
    assert (units >= 0).all()
    assert (units.sum(1) == 10**digits).all()
    assert (units.argmax(1) == honest.numpy().argmax(1)).all()
    exact = honest.double().numpy() * 10**digits
    assert (np.abs(units - exact) < 2 + 1e-3).all()
    return units


@st.composite
def vectors(draw):
    """A few rows of logits, among them equal ones and nearly one-hot ones; and how many digits."""
    classes = draw(st.integers(2, 12))
    spread = draw(st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0]))
    logit = st.floats(-1, 1, width=32) | st.sampled_from([-1.0, 0.0, 1.0])
    rows = draw(st.lists(st.lists(logit, min_size=classes, max_size=classes), min_size=1, max_size=4))
    return (spread * torch.tensor(rows)).softmax(1), draw(st.integers(1, 6))


@given(vectors())
def test_it_rounds_as_one_would_by_hand(case):
    honest, digits = case
    units = assert_rounded(honest, digits)
    for row, found in zip(honest.tolist(), units.tolist(), strict=True):
        expected = by_hand(row, digits)
        # Floats may tell two remainders apart that are equal, or not: then another class has the unit.
        assert found == expected or sorted(found) == sorted(expected)


@given(vectors())
def test_rounding_twice_is_rounding_once(case):
    honest, digits = case
    once = round_answers(honest, digits)
    assert torch.equal(round_answers(once, digits), once)


@given(vectors())
def test_a_row_is_rounded_alike_in_any_batch(case):
    honest, digits = case
    whole = round_answers(honest, digits)
    assert all(torch.equal(round_answers(row[None], digits)[0], whole[i]) for i, row in enumerate(honest))


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("digits", [1, 2, 3, 6])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1.0, 30.0])
def test_any_number_of_classes_and_digits(classes, digits, spread):
    logits = torch.randn(20, classes, generator=torch.Generator().manual_seed(0))
    assert_rounded((spread * logits).softmax(1), digits)


def test_larger_numbers_stay_larger_and_none_moves_a_unit():
    honest = torch.randn(500, 10, generator=torch.Generator().manual_seed(0)).softmax(1)
    units = assert_rounded(honest, 3)
    assert (np.abs(units - 1000 * honest.double().numpy()) < 1.001).mean() > 0.999  # but where a label was kept
    order = honest.argsort(1).numpy()
    label_kept = np.take_along_axis(units, order, 1)
    assert (np.diff(label_kept[:, :-1], axis=1) >= -1).all()


@pytest.mark.parametrize(
    ("row", "digits", "expected"),
    [
        ([0.5, 0.5], 3, [500, 500]),
        ([1.0, 0.0, 0.0], 3, [1000, 0, 0]),
        ([1 / 3, 1 / 3, 1 / 3], 1, [4, 3, 3]),
        ([0.3334, 0.3332, 0.3334], 3, [334, 333, 333]),
        ([0.4996, 0.5004], 3, [499, 501]),  # both would be 500, and the first of two is the label of a tie
        ([0.5004, 0.4996], 3, [500, 500]),
        ([0.04, 0.04, 0.92], 1, [1, 0, 9]),
        ([0.24, 0.25, 0.25, 0.26], 1, [2, 2, 2, 4]),  # the second and the last would have 3, and the last was largest
    ],
)
def test_cases_one_can_check(row, digits, expected):
    found = in_units(round_answers(torch.tensor([row], dtype=torch.float64), digits), digits)
    assert found[0].tolist() == expected


def test_a_thousand_classes_and_one_digit_leave_mostly_zeros():
    honest = torch.full((1, 1000), 0.5 / 999)
    honest[0, 700] = 0.5
    units = assert_rounded(honest, 1)
    assert units[0, 700] == 5
    assert np.flatnonzero(units[0]).tolist() == [0, 1, 2, 3, 4, 700]  # the first of equal ones


def test_no_rows_are_no_rows():
    assert round_answers(torch.empty(0, 5), 3).shape == (0, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_answers_on_a_gpu_stay_there_and_are_the_same():
    honest = torch.randn(50, 100, generator=torch.Generator().manual_seed(0)).softmax(1)
    rounded = round_answers(honest.cuda(), 3)
    assert rounded.is_cuda
    assert torch.equal(rounded.cpu(), round_answers(honest, 3))
