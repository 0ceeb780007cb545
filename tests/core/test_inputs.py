import numpy as np
import pytest
import torch

from queen.core import inputs
from queen.errors import DtypeError, EmptyBatchError, NotFiniteError, RangeError, ShapeError

IMAGES = torch.zeros(2, 3, 4, 4)
IDS = torch.zeros(2, 7, dtype=torch.int64)
TEXT = {"input_ids": IDS, "attention_mask": IDS + 1}


def test_one_tensor_and_named_tensors_are_handled_alike():
    x = torch.arange(12.0).view(4, 3)
    named = {"a": x, "b": -x}
    assert inputs.count(x) == inputs.count(named) == 4
    assert inputs.tensors(x) == {"x": x}
    assert inputs.tensors(named) == named
    rows = torch.tensor([2, 0])
    assert torch.equal(inputs.take(x, rows), x[[2, 0]])
    taken = inputs.take(named, slice(1, 3))
    assert torch.equal(taken["a"], x[1:3])
    assert torch.equal(taken["b"], -x[1:3])
    meta = torch.device("meta")
    assert inputs.to(x, meta).device == meta
    assert {t.device for t in inputs.to(named, meta).values()} == {meta}


def test_batches_are_joined_in_order_and_one_batch_is_left_alone():
    x = torch.arange(12.0).view(4, 3)
    assert inputs.join([x[:1], x[1:3], x[3:]]).equal(x)
    named = inputs.join([{"a": x[:2], "b": -x[:2]}, {"b": -x[2:], "a": x[2:]}])
    assert named["a"].equal(x)
    assert named["b"].equal(-x)
    assert inputs.join([x]) is x


def test_a_good_batch_comes_back_in_the_precision_of_the_model():
    x = torch.rand(5, 3, 4, 4, dtype=torch.float64)
    got = inputs.check(x, IMAGES)
    assert got.dtype == torch.float32
    assert torch.equal(got, x.float())


def test_the_length_of_token_ids_may_vary():
    batch = {"input_ids": torch.ones(3, 11, dtype=torch.int32), "attention_mask": torch.ones(3, 11, dtype=torch.int64)}
    got = inputs.check(batch, TEXT)
    assert set(got) == set(TEXT)
    assert got["input_ids"].dtype == torch.int64


def test_a_mask_of_booleans_is_fine_where_the_model_was_fitted_with_one():
    like = {"input_ids": IDS, "attention_mask": torch.ones(2, 7, dtype=torch.bool)}
    assert inputs.check(like, like)["attention_mask"].dtype == torch.bool


@pytest.mark.parametrize(
    ("x", "like", "error", "says"),
    [
        (np.zeros((2, 3, 4, 4)), IMAGES, DtypeError, "torch.as_tensor"),
        (IMAGES.long(), IMAGES, DtypeError, "int64"),
        (IMAGES.bool(), IMAGES, DtypeError, "bool"),
        (IMAGES.to(torch.complex64), IMAGES, DtypeError, "complex"),
        (IDS.float(), IDS, DtypeError, "float32"),
        (IDS.bool(), IDS, DtypeError, "bool"),
        (IMAGES[0], IMAGES, ShapeError, r"\(n, 3, 4, 4\).*\(3, 4, 4\)"),
        (torch.zeros(2, 3, 4, 5), IMAGES, ShapeError, r"\(2, 3, 4, 5\)"),
        (torch.zeros(2, 7, 1, dtype=torch.int64), IDS, ShapeError, r"\(2, 7, 1\)"),
        (torch.tensor(0.0), IMAGES, ShapeError, r"\(\)"),
        (IMAGES[:0], IMAGES, EmptyBatchError, r"\(0, 3, 4, 4\)"),
        (IDS[:, :0], IDS, EmptyBatchError, r"\(2, 0\)"),
        (IMAGES / 0, IMAGES, NotFiniteError, "NaN"),
        (IMAGES + torch.inf, IMAGES, NotFiniteError, "infinity"),
        (IMAGES.double() + 1e300, IMAGES, NotFiniteError, "infinity"),
        (IDS, TEXT, DtypeError, "attention_mask.*input_ids.*Tensor"),
        ({"input_ids": IDS}, TEXT, DtypeError, r"got names \['input_ids'\]"),
        ({**TEXT, "extra": IDS}, TEXT, DtypeError, "extra"),
        (TEXT, IMAGES, DtypeError, "dict"),
        ({**TEXT, "attention_mask": IDS[:1]}, TEXT, ShapeError, "differ in rows"),
        ({**TEXT, "attention_mask": IDS.float()}, TEXT, DtypeError, "attention_mask"),
    ],
)
def test_a_bad_batch_is_refused_with_its_reason(x, like, error, says):
    with pytest.raises(error, match=says):
        inputs.check(x, like)


PICTURES = torch.rand(3, 1, 4, 4)


@pytest.mark.parametrize("factor", [1.0, 1.04, -0.04])
def test_images_within_the_fitted_range_pass(factor):
    x = PICTURES.clone()
    x[0, 0, 0, 0] = factor
    assert torch.equal(inputs.check(x, PICTURES, (0.0, 1.0)), x)


@pytest.mark.parametrize("value", [1.06, -0.06, 1e30])
def test_images_of_impossible_contrast_are_refused(value):
    x = PICTURES.clone()
    x[0, 0, 0, 0] = value
    with pytest.raises(RangeError, match=r"expected x from 0 to 1 as in the fitted images, got .* input_range=None"):
        inputs.check(x, PICTURES, (0.0, 1.0))
    assert torch.equal(inputs.check(x, PICTURES), x)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_called_so_with_a_range_too(value):
    x = PICTURES.clone()
    x[0, 0, 0, 0] = value
    with pytest.raises(NotFiniteError):
        inputs.check(x, PICTURES, (0.0, 1.0))
