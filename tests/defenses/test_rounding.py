from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from queen.defenses import rounding
from tests.support.defenses import F64, all_kinds

BOTH = pytest.mark.parametrize("dtype", [torch.float32, F64])


@BOTH
@pytest.mark.parametrize(
    ("y", "answer"),
    [
        ([0.55, 0.25, 0.15, 0.05], [0.6, 0.2, 0.2, 0.0]),
        ([0.14, 0.46, 0.31, 0.09], [0.1, 0.5, 0.3, 0.1]),
    ],
)
def test_the_published_vectors(y, answer, dtype):
    got = rounding.perturb(torch.tensor([y], dtype=dtype))
    assert torch.equal(got, torch.tensor([answer], dtype=dtype))


def test_answers_need_not_sum_to_one_and_may_be_zero():
    assert rounding.perturb(torch.full((1, 100), 0.01)).sum() == 0
    assert rounding.perturb(torch.tensor([[0.64, 0.13, 0.12, 0.11]])).sum() == pytest.approx(0.9)


@BOTH
@pytest.mark.parametrize("decimals", [0, 1, 2, 3])
def test_it_is_numpys_rounding(decimals, dtype):
    y = torch.cat([all_kinds(10, dtype=dtype).flatten(), torch.arange(0, 1.001, 0.005, dtype=dtype)])[None]
    assert np.array_equal(rounding.perturb(y, decimals=decimals).numpy(), np.round(y.numpy(), decimals))


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=6), st.integers(0, 6))
def test_it_is_numpys_rounding_for_any_float32(numbers, decimals):
    y = np.array([numbers], np.float32)
    assert np.array_equal(rounding.perturb(torch.from_numpy(y), decimals=decimals).numpy(), np.round(y, decimals))
