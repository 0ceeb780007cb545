"""ModelGuard-S: a batch is answered as if its rows came one by one, and clients know nothing of each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.defenses import modelguard_s
from tests.reference.modelguard import repeat_one_by_one
from tests.support.defenses import F64, all_kinds, generator, is_tied, simplex, small_victim, vectors

NO_TIES = pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0, 2.0])


@NO_TIES
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("sizes", [[300], [1] * 300, [7, 100, 193]])
def test_batches_are_answered_like_single_rows(classes, sizes, epsilon):
    y = simplex(300, classes, sharpness=1.0)
    y = y[torch.randint(300, (300,), generator=generator())]  # some come again
    earlier: modelguard_s.EarlierAnswers = {}
    answers = torch.cat([modelguard_s.repeat(part, earlier, epsilon=epsilon) for part in y.split(sizes)])
    reference: dict[int, list[np.ndarray]] = {}
    assert np.array_equal(answers.numpy(), repeat_one_by_one(y.numpy(), reference, epsilon))
    assert {label: len(rows) for label, rows in earlier.items()} == {k: len(rows) for k, rows in reference.items()}
    assert all(np.array_equal(earlier[k].numpy(), np.array(rows)) for k, rows in reference.items())


@settings(max_examples=200)
@given(st.lists(vectors(3, 3), min_size=1, max_size=30), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(1, 30))
def test_batches_are_answered_like_single_rows_for_anything(rows, epsilon, size):
    y = np.array(rows)
    earlier: modelguard_s.EarlierAnswers = {}
    parts = torch.from_numpy(y).split(size)
    answers = torch.cat([modelguard_s.repeat(part, earlier, epsilon=epsilon) for part in parts])
    alone: modelguard_s.EarlierAnswers = {}
    singles = torch.cat([modelguard_s.repeat(row[None], alone, epsilon=epsilon) for row in torch.from_numpy(y)])
    assert torch.equal(answers, singles)
    assert (answers - torch.from_numpy(y)).abs().sum(1).max() <= epsilon + 1e-12


def test_the_oldest_near_answer_is_given_even_if_a_later_one_is_nearer():
    y = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.75, 0.25], [0.61, 0.39]], dtype=F64)
    got = modelguard_s.repeat(y, {}, epsilon=0.4)
    assert got.tolist() == [[0.9, 0.1], [0.6, 0.4], [0.9, 0.1], [0.6, 0.4]]


def test_a_distance_of_exactly_epsilon_is_near():
    y = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert modelguard_s.repeat(y, {}, epsilon=1.0).tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert modelguard_s.repeat(y, {}, epsilon=0.999).tolist() == y.tolist()


def test_classes_are_apart():
    y = torch.tensor([[0.51, 0.49], [0.49, 0.51]])
    assert torch.equal(modelguard_s.repeat(y, {}, epsilon=1.0), y)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_labels_are_kept_and_arguments_left_alone(dtype):
    y = all_kinds(10, dtype=dtype)
    before = y.clone()
    earlier: modelguard_s.EarlierAnswers = {}
    got = modelguard_s.repeat(y, earlier, epsilon=1.0)
    assert torch.equal(y, before)
    assert got.dtype == dtype
    assert torch.equal(got.argmax(1), y.argmax(1))
    assert not torch.equal(got, y)
    assert is_tied(y)  # and even those rows keep theirs
    assert 10 <= sum(map(len, earlier.values())) < len(y) / 2
    got[:] = 0
    assert all((rows.sum(1) > 0.9).all() for rows in earlier.values())


def test_every_client_has_a_memory_of_its_own():
    victim = small_victim()
    x = victim.train[0][:200]
    clean = victim.clean(x)
    endpoint = modelguard_s.DEFENSE.start(victim, generator(), epsilon=1.0)
    forward, backward = endpoint.client("a")(x), endpoint.client("b")(x.flip(0)).flip(0)
    assert not torch.equal(forward, backward)
    assert torch.equal(endpoint.client("a")(x.flip(0)), forward.flip(0))  # an answer is repeated
    assert torch.equal(endpoint.client("c")(x), forward)
    assert torch.equal(endpoint.simulate(clean, x, generator())[0], forward)
    assert torch.equal(endpoint.client("d")(x.flip(0)), backward.flip(0))


def test_simulating_changes_nothing():
    victim = small_victim()
    x = victim.train[0][:100]
    endpoint = modelguard_s.DEFENSE.start(victim, generator())
    endpoint.simulate(victim.clean(x.flip(0)), x.flip(0), generator())
    assert torch.equal(endpoint.client("a")(x), endpoint.simulate(victim.clean(x), x, generator())[0])
