"""MAD: the closed form against gradients, every candidate and greedy growth one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed.rivals import worst_by_autograd
from queen.defenses import mad
from queen.training import probabilities
from tests.reference.mad import best_grown, best_of_all, candidate, mixed, objective
from tests.support.defenses import (
    F64,
    all_kinds,
    generator,
    keeps_top,
    odd_rows,
    on_simplex,
    simplex,
    small_victim,
    vectors,
)


def gradients(p: np.ndarray) -> np.ndarray:
    """G for a surrogate that says p: rows p - e_k (times the features, which cancel)."""
    return p[None] - np.eye(len(p))


def worst(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """With this much epsilon the answer is the candidate itself."""
    return mad.perturb(torch.from_numpy(y)[None], torch.from_numpy(p)[None], epsilon=10.0)[0].numpy()


@pytest.mark.parametrize(("epsilon", "answer"), [(1.0, [0.500002, 0, 0.499998]), (0.5, [0.575001, 0.074999, 0.35])])
def test_the_fixed_vectors_for_a_g_of_identity(epsilon, answer):
    """With p = 0 the objective is that of G = I: | n(-q) - n(-y) |."""
    y = torch.tensor([[0.7, 0.2, 0.1]], dtype=F64)
    assert mad.perturb(y, torch.zeros_like(y), epsilon=epsilon)[0].tolist() == pytest.approx(answer, abs=1e-6)
    by_definition = mixed(y[0].numpy(), best_of_all(y[0].numpy(), np.eye(3)), epsilon)
    assert by_definition == pytest.approx(answer, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_gradients_of_the_last_layer_are_what_the_closed_form_says(classes):
    features = torch.randn(7, generator=generator(1), dtype=F64)
    layer = torch.nn.Linear(7, classes, dtype=F64)
    losses = -layer(features).log_softmax(0)
    rows = [torch.autograd.grad(loss, layer.weight, retain_graph=True)[0] for loss in losses]
    p = layer(features).softmax(0).detach()
    expected = torch.einsum("kj,d->kjd", torch.from_numpy(gradients(p.numpy())), features)
    assert torch.allclose(torch.stack(rows), expected, atol=1e-14)
    G = torch.stack(rows).flatten(1).numpy()
    for y, q in zip(simplex(20, classes), simplex(20, classes, 1), strict=True):
        short = objective(q.numpy(), y.numpy(), gradients(p.numpy()))
        assert objective(q.numpy(), y.numpy(), G) == pytest.approx(short, abs=1e-12)


@pytest.mark.parametrize("classes", [3, 5, 10])  # with two all candidates lie on one line, and many tie
def test_it_finds_what_autograd_finds(classes):
    layer = torch.nn.Linear(16, classes, dtype=F64)
    features = torch.randn(30, 16, generator=generator(2), dtype=F64)
    y = simplex(30, classes, 3)
    table = mad.all_sets(classes, y)
    with torch.no_grad():
        p = layer(features).softmax(1)
    got = mad.perturb(y, p, epsilon=10.0)
    for row, feature, answer in zip(y, features, got, strict=True):
        assert torch.allclose(worst_by_autograd(row, feature, layer, table), answer, atol=1e-12)


def assert_best(got: np.ndarray, best: np.ndarray, y: np.ndarray, p: np.ndarray) -> None:
    """The same candidate, or another one with the same objective: rounding decides between those that tie."""
    if not np.allclose(got, best, rtol=0, atol=1e-12):
        G = gradients(p)
        assert objective(got, y, G) == pytest.approx(objective(best, y, G), abs=1e-9)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_all_sets_are_compared(classes, sharpness):
    y, p = all_kinds(classes, 12).numpy(), simplex(56, classes, 9, sharpness).numpy()
    same = 0
    for row, surrogate in zip(y, p, strict=True):
        best = best_of_all(row, gradients(surrogate))
        assert_best(worst(row, surrogate), best, row, surrogate)
        same += np.allclose(worst(row, surrogate), best)
    assert same > 30


@settings(max_examples=100)
@given(vectors(2, 5), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 5.0]))
def test_all_sets_are_compared_for_anything(y, seed, sharpness):
    p = simplex(1, len(y), seed, sharpness)[0].numpy()
    assert_best(worst(y, p), best_of_all(y, gradients(p)), y, p)


def test_ten_classes_have_512_candidates():
    table = mad.all_sets(10, torch.zeros(1, dtype=F64))
    assert table.shape == (512, 10)
    assert len(table.unique(dim=0)) == 512
    assert table[0].tolist() == [1.0] + [0.0] * 9
    assert np.allclose(table[5].numpy(), candidate((0, 1, 3), 0, 10), atol=1e-15)


@pytest.mark.parametrize("sharpness", [0.2, 3.0])
@pytest.mark.parametrize(("classes", "rows"), [(11, 10), (14, 10), (60, 2)])
def test_greedy_growth(classes, rows, sharpness):
    y = torch.cat([simplex(rows, classes), odd_rows(classes)[:rows]]).numpy()
    p = simplex(len(y), classes, 5, sharpness).numpy()
    for row, surrogate in zip(y, p, strict=True):
        best, _ = best_grown(row, gradients(surrogate))
        assert_best(worst(row, surrogate), best, row, surrogate)


@pytest.mark.parametrize(("classes", "added"), [(11, 10), (100, 11), (256, 5)])
def test_growth_stops_after_1024_evaluations(classes, added):
    assert list(mad.greedy_sizes(classes)) == list(range(2, added + 2))
    if classes < 256:
        y, p = simplex(1, classes)[0].numpy(), simplex(1, classes, 1)[0].numpy()
        assert best_grown(y, gradients(p))[1] == added + 1


@given(vectors(2, 14), st.integers(0, 10**6), st.floats(0, 2))
def test_answers_are_near_enough_and_on_the_way(y, seed, epsilon):
    p = simplex(1, len(y), seed, 0.5)
    got = mad.perturb(torch.from_numpy(y)[None], p, epsilon=epsilon)
    assert on_simplex(got)
    assert np.abs(got[0].numpy() - y).sum() <= epsilon + 1e-12
    end = worst(y, p[0].numpy())
    assert got[0].numpy() == pytest.approx(mixed(y, end, epsilon), abs=1e-12)


@settings(max_examples=200)
@given(vectors(2, 60), st.integers(0, 10**6), st.floats(1, 2), st.sampled_from([torch.float32, F64]))
def test_the_label_is_kept_even_where_classes_tie(y, seed, epsilon, dtype):
    clean = torch.from_numpy(y)[None].to(dtype)
    got = mad.perturb(clean, simplex(1, len(y), seed, 0.5, dtype), epsilon=epsilon)
    assert keeps_top(clean, got)


@pytest.mark.parametrize("classes", [2, 10, 30])
def test_a_surrogate_that_agrees_exactly_gives_an_answer_all_the_same(classes):
    y = odd_rows(classes)
    for p in (y, y.flip(0), torch.full_like(y, 1 / classes)):
        got = mad.perturb(y, p)
        assert on_simplex(got)
        assert keeps_top(y, got)


def test_a_candidate_that_the_surrogate_says_itself_is_no_direction():
    """y = p = one-hot: every other candidate turns the gradient, this one has none."""
    y = torch.tensor([[1.0, 0.0, 0.0]], dtype=F64)
    assert mad.perturb(y, y, epsilon=10.0)[0].tolist() != [1.0, 0.0, 0.0]
    flat = torch.full_like(y, 1 / 3)
    assert mad.perturb(flat, flat, epsilon=10.0)[0].tolist() == [1.0, 0.0, 0.0]


def test_chunks_do_not_matter(monkeypatch):
    for classes in (6, 20):
        y, p = simplex(200, classes), simplex(200, classes, 1)
        whole = mad.perturb(y, p)
        monkeypatch.setattr(mad, "CHUNK", 100)
        assert torch.equal(mad.perturb(y, p), whole)
        monkeypatch.undo()


def test_the_surrogate_is_an_untrained_network_drawn_from_the_generator():
    victim = small_victim()
    x = victim.train[0][:30]
    surrogate = victim.make_network(generator(7)).eval()
    expected = mad.perturb(victim.clean(x), probabilities(surrogate, x))
    assert torch.equal(mad.DEFENSE.start(victim, generator(7)).client("a")(x), expected)
    assert not torch.equal(mad.DEFENSE.start(victim, generator(8)).client("a")(x), expected)
