"""Arrays in, arrays out: a guard answers in the kind that it was asked in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import queen
from queen.errors import DtypeError, RefusedError
from queen.fit.data import image_batches
from tests.support.guards import QUICK, fitted, held_out, queries, train_set, trained


def test_arrays_get_arrays_and_tensors_get_tensors():
    x = queries(count=20)
    with_tensors = fitted().answer(x, client="a")
    with_arrays = fitted().answer(x.numpy(), client="a")
    assert isinstance(with_tensors.probabilities, torch.Tensor)
    assert isinstance(with_arrays.probabilities, np.ndarray)
    assert np.array_equal(with_arrays.probabilities, with_tensors.probabilities.numpy())
    assert with_arrays.verdicts == with_tensors.verdicts


def test_a_client_gets_arrays_too():
    ask, x = fitted().as_client("a"), queries(count=5)
    assert isinstance(ask(x.numpy()), np.ndarray)
    assert torch.equal(torch.from_numpy(ask(x.numpy())), ask(x))


def test_a_refusal_holds_arrays_too():
    guard, x = fitted(policy="sentinel", limits=queen.options.Limits(extra_answers=0)), queries(count=200)
    for asked, kind in ((x, torch.Tensor), (x.numpy(), np.ndarray)):
        with pytest.raises(RefusedError) as refusal:
            guard.answer(asked, client="a")
        assert isinstance(refusal.value.reply.probabilities, kind)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        np.asfortranarray,
        lambda x: x[:, ::-1][:, ::-1],
        lambda x: x.astype(np.float64)[::1],
    ],
    ids=["double", "big endian", "columns first", "backwards", "view"],
)
def test_the_order_of_an_array_in_memory_does_not_matter(change):
    x = queries(count=6).numpy()
    expected = fitted().answer(x, client="a").probabilities
    assert np.array_equal(fitted().answer(change(x), client="a").probabilities, expected)


def test_an_array_that_may_not_be_written_to_is_read_quietly(recwarn):
    x = queries(count=6).numpy().copy()
    x.flags.writeable = False
    fitted().answer(x, client="a")
    assert not recwarn.list


@pytest.mark.parametrize("x", [np.array([["a"] * 64]), np.array([[None] * 64])], ids=["text", "objects"])
def test_an_array_without_numbers_is_refused(x):
    with pytest.raises(DtypeError, match="numbers"):
        fitted().answer(x, client="a")


def test_arrays_fit_and_calibrate_as_tensors_do():
    (x, y), held = train_set(), held_out()[0][:300]
    options = {"mapping": QUICK, "policy": "paper", "progress": False}
    with_tensors = queen.protect(trained("mlp"), (x, y), calibration=held, **options)
    with_arrays = queen.protect(trained("mlp"), (x.numpy(), y.numpy()), calibration=held.numpy(), **options)
    assert with_arrays.bundle.identity == with_tensors.bundle.identity
    assert [x.shape for x, _ in image_batches([held[:3].numpy(), held[3:5].numpy()])] == [(3, 64), (2, 64)]
