from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from queen.defenses import emdp
from tests.support.defenses import F64, all_kinds, vectors


def test_the_fixed_vectors():
    y = torch.tensor([[0.7, 0.2, 0.1]], dtype=F64)
    assert emdp.perturb(y)[0].tolist() == pytest.approx([0.396885, 0.309095, 0.294020], abs=5e-7)
    one_hot = torch.eye(10, dtype=F64)
    assert emdp.perturb(one_hot).amax(1).tolist() == pytest.approx([0.1548] * 10, abs=5e-5)


@given(vectors(), st.floats(0.1, 20))
def test_it_is_the_formula_and_can_be_undone(y, epsilon):
    answers = emdp.perturb(torch.from_numpy(y)[None], epsilon=epsilon)
    raised = np.exp(epsilon * y / 2)
    assert answers[0].numpy() == pytest.approx(raised / raised.sum(), abs=1e-14)
    assert emdp.invert(answers, epsilon=epsilon)[0].numpy() == pytest.approx(y, abs=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (F64, 1e-12)])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_an_attacker_undoes_it(classes, dtype, tolerance):
    y = all_kinds(classes, dtype=dtype)
    assert (emdp.invert(emdp.perturb(y)) - y).abs().max() < tolerance
    assert (emdp.perturb(y) - y).abs().amax(1).max() > 0.3  # there is something to undo


def test_with_another_epsilon_the_inverse_is_another():
    y = torch.tensor([[0.7, 0.2, 0.1]], dtype=F64)
    assert (emdp.invert(emdp.perturb(y, epsilon=2.0), epsilon=1.0) - y).abs().max() > 0.1
