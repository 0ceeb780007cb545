"""Worse cameras: what each condition does to an image."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import uniform_filter
from torch import Tensor

from queen.errors import OptionError, ShapeError
from queen.sentinel.conditions import CLEAN, CONDITIONS, apply, check_condition
from tests.support.guards import digits, images


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(channels: int = 1, height: int = 8, width: int = 8) -> Tensor:
    if (channels, height, width) == (1, 8, 8):
        return images(digits()[0][:40])
    return torch.rand(7, channels, height, width, generator=seeded(9))


SHAPES = [(1, 8, 8), (3, 12, 9), (3, 5, 32)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CONDITIONS)
def test_every_condition_keeps_shape_type_and_range_and_changes_the_image(name, shape):
    x = pictures(*shape)
    before, found = x.clone(), apply(name, x, seeded())
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    assert 0 <= found.min() <= found.max() <= 1
    assert torch.equal(x, before)  # the caller's images are left alone
    assert ((found - x).abs().amax((1, 2, 3)) > 0).double().mean() > 0.9


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        ("noise:0.01", "noise:0.2"),
        ("blur:3", "blur:7"),
        ("brightness:1.1", "brightness:2"),
        ("brightness:0.9", "brightness:0.3"),
        ("contrast:0.9", "contrast:0.2"),
        ("downscale:2", "downscale:4"),
        ("jpeg:90", "jpeg:5"),
    ],
)
def test_more_strength_changes_more(weak, strong):
    x = pictures()
    little, much = ((apply(name, x, seeded()) - x).abs().mean().item() for name in (weak, strong))
    assert 0 < little < 0.7 * much


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_without_a_strength_has_its_usual_one(name):
    x = pictures()
    assert torch.equal(apply(name, x, seeded()), apply(f"{name}:{CONDITIONS[name][1]}", x, seeded()))


def test_a_clean_image_is_the_same_image():
    x = pictures()
    assert apply(CLEAN, x, seeded()) is x


def test_noise_is_normal_of_its_strength_and_drawn_from_the_generator():
    x = torch.full((50, 1, 16, 16), 0.5)
    one, again, other = (apply("noise:0.05", x, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert (one - x).std().item() == pytest.approx(0.05, rel=0.03)
    assert (one - x).mean().item() == pytest.approx(0, abs=0.002)
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize("width", [3, 5])
def test_blur_is_the_mean_over_a_square(width):
    x = pictures(3, 12, 9)
    expected = np.stack([[uniform_filter(c.numpy().astype(float), width, mode="nearest") for c in im] for im in x])
    assert np.allclose(apply(f"blur:{width}", x, seeded()).numpy(), expected, atol=1e-6)


def test_brightness_and_contrast_are_linear_and_clipped():
    x = pictures()
    assert torch.allclose(apply("brightness:1.3", x, seeded()), (1.3 * x).clamp(max=1))
    mean = x.mean((1, 2, 3), keepdim=True)
    assert torch.allclose(apply("contrast:0.7", x, seeded()), mean + 0.7 * (x - mean), atol=1e-6)
    assert apply("contrast:9", x, seeded()).unique().numel() < x.unique().numel() * 10
    assert apply("contrast:9", x, seeded()).min() == 0


def test_downscaling_loses_what_is_finer_than_a_pixel_of_the_small_image():
    x = (torch.arange(16) % 2).float().view(1, 1, 1, 16).expand(1, 1, 16, 16)  # stripes of one pixel
    assert (apply("downscale:4", x, seeded()) - 0.5).abs().max() < 0.1
    flat = torch.full((1, 1, 16, 16), 0.3)
    assert torch.allclose(apply("downscale:4", flat, seeded()), flat)


def test_downscaling_below_one_pixel_leaves_one_colour():
    found = apply("downscale:64", pictures(), seeded()).flatten(1)
    assert torch.allclose(found, found[:, :1].expand_as(found), atol=1e-5)
    assert found.std() > 0.01


@pytest.mark.parametrize("quality", [10, 50, 95])
def test_jpeg_is_a_real_round_trip(quality):
    for x in (pictures(), pictures(3, 16, 24)):
        found = apply(f"jpeg:{quality}", x, seeded())
        for image, got in zip(x, found, strict=True):
            pixels = (image * 255).round().byte().permute(1, 2, 0).squeeze(2).numpy()
            file = BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=quality)
            expected = np.asarray(Image.open(BytesIO(file.getvalue())), np.float32) / 255
            shown = got.permute(1, 2, 0).squeeze(2).numpy()
            assert np.allclose(shown, expected, atol=1e-6)
            assert not np.allclose(shown, pixels / 255, atol=1e-3)


def test_jpeg_wants_one_channel_or_three():
    with pytest.raises(ShapeError, match="2"):
        apply("jpeg", torch.rand(1, 2, 8, 8), seeded())


def test_known_names_and_strengths_are_accepted_as_they_are():
    for name in ("noise", "noise:0.06", "blur:5", "jpeg:30", "downscale:1.5"):
        assert check_condition(name) == name


@pytest.mark.parametrize("name", ["fog", "", ":", ":3", "Noise", "clean", "noise ", 3, None, ("noise",)])
def test_unknown_conditions_are_refused_with_the_known_ones(name):
    with pytest.raises(OptionError, match="known: noise, blur, brightness, contrast, downscale, jpeg"):
        check_condition(name)


@pytest.mark.parametrize("strength", ["", "x", "-1", "0", "nan", "inf", "1e9", "1:2", "2.9", "100"])
def test_strengths_out_of_range_are_refused_with_an_example(strength):
    with pytest.raises(OptionError, match="number from 3 to 99, as in blur:3"):
        check_condition(f"blur:{strength}")


@pytest.mark.parametrize("name", ["jpeg:96", "jpeg:0", "downscale:1", "noise:2", "brightness:0", "contrast:1000"])
def test_strengths_that_would_do_nothing_or_anything_are_refused(name):
    with pytest.raises(OptionError, match="must be a number from"):
        check_condition(name)


def test_applying_an_unknown_condition_is_refused_too():
    with pytest.raises(OptionError, match="fog"):
        apply("fog", pictures(), seeded())
