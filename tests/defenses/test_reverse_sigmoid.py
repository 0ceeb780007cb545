from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from queen.defenses import reverse_sigmoid
from tests.support.defenses import F64, all_kinds, keeps_top, on_simplex, simplex, vectors


def test_the_fixed_vector():
    y = torch.tensor([[0.7, 0.2, 0.1]], dtype=F64)
    assert reverse_sigmoid.perturb(y)[0].tolist() == pytest.approx([0.673401, 0.208165, 0.118434], abs=5e-7)


@pytest.mark.parametrize(("beta", "gamma"), [(0.2, 0.2), (0.02, 0.2), (1.0, 0.1), (0.0, 1.0), (1.0, 30.0)])
def test_it_is_the_formula(beta, gamma):
    y = all_kinds(7)
    with np.errstate(divide="ignore"):
        expected = y.numpy() - beta * (expit(gamma * logit(y.numpy())) - 0.5)
    expected /= expected.sum(1, keepdims=True)
    assert np.allclose(reverse_sigmoid.perturb(y, beta=beta, gamma=gamma).numpy(), expected, rtol=0, atol=1e-14)


def test_zero_and_one_are_safe():
    got = reverse_sigmoid.perturb(torch.tensor([[1.0, 0.0, 0.0]], dtype=F64))
    assert got[0].tolist() == pytest.approx([0.9 / 1.1, 0.1 / 1.1, 0.1 / 1.1], abs=1e-15)
    above = torch.tensor([[1.0000001, 0.0, 0.0]])
    assert torch.equal(reverse_sigmoid.perturb(above), got.float())


def test_without_beta_nothing_changes():
    y = simplex(50, 5)
    assert torch.allclose(reverse_sigmoid.perturb(y, beta=0.0), y, atol=1e-15)


@given(vectors(), st.floats(0, 1), st.floats(0.01, 50))
def test_every_answer_is_a_probability_vector(y, beta, gamma):
    assert on_simplex(reverse_sigmoid.perturb(torch.from_numpy(y)[None], beta=beta, gamma=gamma))


def lift(y: float, beta: float, gamma: float) -> float:
    return y - beta * (expit(gamma * logit(y)) - 0.5)


def test_it_is_not_monotone_near_zero():
    assert lift(1e-6, 0.2, 0.2) > lift(0.01, 0.2, 0.2)


@pytest.mark.parametrize(("classes", "beta"), [(2, 0.2), (10, 0.2), (10, 0.21), (13, 0.2), (100, 0.02), (256, 0.008)])
def test_up_to_so_many_classes_the_label_is_kept(classes, beta):
    assert 1 / classes > beta * expit(0.2 * logit(1 / classes))
    y = all_kinds(classes, 300)
    unique = y.topk(2, dim=1).values.diff()[:, 0] < 0
    assert keeps_top(y[unique], reverse_sigmoid.perturb(y[unique], beta=beta))
    worst = torch.zeros(1, classes, dtype=F64)  # a low top class beside an exact zero, which is lifted most
    worst[0, 1:] = 1 / (classes - 1)
    worst[0, 1] += 1e-6
    worst[0, -1] -= 1e-6
    assert keeps_top(worst, reverse_sigmoid.perturb(worst, beta=beta))


@pytest.mark.parametrize("classes", [15, 100])
def test_beyond_them_it_is_not(classes):
    y = torch.zeros(1, classes, dtype=F64)
    y[0, 1:] = 1 / (classes - 1)
    y[0, 1] += 1e-6
    assert y.argmax(1).item() == 1
    assert reverse_sigmoid.perturb(y / y.sum()).argmax(1).item() == 0
