from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.errors import OptionError, ShapeError
from queen.fit.files import attempt, factory_args, read_data, read_query, read_weights, write_image
from tests.support.guards import fitted, images, train_set

PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4


def like(channels: int = 1, size: int = 8, **fields: object) -> Bundle:
    """A bundle for images of this shape: reading a query only looks at the probe and the pixel statistics."""
    bundle = fitted("network").bundle
    return replace(bundle, probe=replace(bundle.probe, x=torch.zeros(4, channels, size, size)), **fields)


def read(array: np.ndarray, bundle: Bundle, folder, mode: str | None = None) -> Tensor:
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(folder / "image.png")
    return read_query(folder / "image.png", bundle)


def test_a_grey_image_is_scaled_to_one(tmp_path):
    x = read(PIXELS, like(), tmp_path)
    assert x.dtype == torch.float32
    assert torch.equal(x, torch.from_numpy(PIXELS.astype(np.float32) / 255)[None, None])


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P"])
def test_a_grey_model_sees_the_same_in_any_kind_of_file(tmp_path, mode):
    grey = np.full((8, 8), 200, np.uint8)
    assert torch.equal(read(grey, like(), tmp_path, mode), torch.full((1, 1, 8, 8), 200 / 255))


def test_an_image_of_16_bits_is_the_same_image(tmp_path):
    deep = read(PIXELS.astype(np.uint16) * 257, like(), tmp_path)
    assert torch.allclose(deep, read(PIXELS, like(), tmp_path), atol=1 / 255)


@pytest.mark.parametrize(
    ("mode", "size", "told"),
    [
        ("L", (8, 8), None),
        ("RGB", (8, 8), "from 8 x 8 pixels in colour to 8 x 8 pixels in grey"),
        ("L", (5, 9), "from 5 x 9 pixels in grey to 8 x 8 pixels in grey"),
        ("RGBA", (20, 8), "from 20 x 8 pixels in colour with transparency to 8 x 8 pixels in grey"),
        ("I;16", (8, 8), "from 8 x 8 pixels in grey of 16 bits to 8 x 8 pixels in grey"),
    ],
)
def test_whoever_asks_with_a_picture_is_told_how_it_was_converted(tmp_path, mode, size, told):
    said: list[str] = []
    path = tmp_path / "image.png"
    Image.new(mode, size).save(path)
    read_query(path, like(), on_convert=said.append)
    assert said == ([] if told is None else [f"'{path}' was converted {told}, which the model takes"])


def test_channels_of_a_colour_image_stay_in_order(tmp_path):
    colour = np.zeros((8, 8, 3), np.uint8)
    colour[..., 0], colour[0, :, 2] = 255, 51
    x = read(colour, like(3), tmp_path)
    assert x.shape == (1, 3, 8, 8)
    assert x[0, 0].eq(1).all()
    assert x[0, 1].eq(0).all()
    assert x[0, 2, 0].eq(0.2).all()
    assert x[0, 2, 1:].eq(0).all()


def test_a_grey_image_for_a_colour_model_has_three_equal_channels(tmp_path):
    x = read(PIXELS, like(3), tmp_path)
    assert torch.equal(x, read(PIXELS, like(1), tmp_path).expand(1, 3, 8, 8))


def test_an_image_is_resized_to_the_model(tmp_path):
    assert read(PIXELS, like(size=5), tmp_path).shape == (1, 1, 5, 5)
    wide = np.zeros((4, 16), np.uint8)
    wide[:, 8:] = 255
    x = read(wide, like(size=8), tmp_path)
    assert x[0, 0, :, 0].eq(0).all()
    assert x[0, 0, :, -1].eq(1).all()


@pytest.mark.parametrize("span", [(-2.1, 2.6), (0.0, 255.0), (-1.0, 1.0)])
def test_image_files_are_refused_where_their_units_are_unknown(tmp_path, span):
    with pytest.raises(OptionError, match=r"expected .* in 0\.\.1.* got .*\.npy or \.npz .*pixel_mean and pixel_std"):
        read(PIXELS, like(input_range=span), tmp_path)
    assert read(PIXELS, like(input_range=span, pixel_mean=(0.5,), pixel_std=(0.5,)), tmp_path).min() == -1


def test_without_a_range_the_probe_tells_the_units(tmp_path):
    bundle = like(input_range=None)
    assert read(PIXELS, bundle, tmp_path).min() == 0
    normalised = replace(bundle.probe, x=torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(OptionError, match=r"got training images of mean .* and standard deviation 0\.9"):
        read(PIXELS, replace(bundle, probe=normalised), tmp_path)


def test_pixel_mean_and_std_are_applied_to_every_channel(tmp_path):
    mean, std = (0.1, 0.2, 0.3), (0.5, 2.0, 4.0)
    plain = read(PIXELS, like(3), tmp_path)
    x = read(PIXELS, like(3, pixel_mean=mean, pixel_std=std), tmp_path)
    for channel in range(3):
        assert torch.allclose(x[0, channel], (plain[0, channel] - mean[channel]) / std[channel])


def test_a_written_image_reads_back(tmp_path):
    x = images(train_set()[0])[:1]
    write_image(x[0], tmp_path / "digit.png")
    assert torch.allclose(read_query(tmp_path / "digit.png", like()), x, atol=0.5 / 255 + 1e-6)


def test_an_image_needs_a_model_of_images(tmp_path):
    write_image(torch.zeros(1, 8, 8), tmp_path / "digit.png")
    with pytest.raises(ShapeError, match=r"not images: use \.npy"):
        read_query(tmp_path / "digit.png", fitted().bundle)
    with pytest.raises(ShapeError, match="not images"):
        read_query(tmp_path / "digit.png", like(channels=2))


def test_an_npy_file_holds_one_query_or_a_batch(tmp_path):
    x = train_set()[0][:3]
    np.save(tmp_path / "one.npy", x[0].numpy())
    np.save(tmp_path / "batch.npy", x.numpy())
    assert torch.equal(read_query(tmp_path / "one.npy", fitted().bundle), x[:1])
    assert torch.equal(read_query(tmp_path / "batch.npy", fitted().bundle), x)


def test_a_model_of_named_tensors_cannot_be_asked_with_a_file(tmp_path):
    bundle = fitted().bundle
    text = replace(bundle, probe=replace(bundle.probe, x={"input_ids": torch.zeros(1, 2)}))
    with pytest.raises(OptionError, match="Python library"):
        read_query(tmp_path / "one.npy", text)


def test_weights_and_data_come_back_as_they_were_saved(tmp_path):
    x, y = train_set()
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy(), names=np.array(["more"]))
    again = read_data(tmp_path / "data.npz")
    assert torch.equal(again[0], x)
    assert torch.equal(again[1], y)
    with pytest.raises(OptionError, match="convert them once"):
        read_weights(tmp_path / "model.pth")


def test_factory_arguments_are_json_where_they_parse():
    pairs = ["classes=10", "bias=true", "plan=64 M", "rate=.5", "sizes=[1, 2]", "text=a=b", "none=null", "name="]
    assert factory_args(pairs) == {
        "classes": 10, "bias": True, "plan": "64 M", "rate": ".5", "sizes": [1, 2], "text": "a=b", "none": None,
        "name": "",
    }  # fmt: skip
    for wrong in ("classes", "=1", "two words=1", "1st=2"):
        with pytest.raises(OptionError, match="name=value"):
            factory_args([wrong])


def test_attempt_makes_one_short_line_of_the_errors_named_and_lets_others_through():
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(OptionError, match=r"^cannot: a b$"):
        attempt(lambda: fail(OSError("a\n\t b")), "cannot", OSError)
    with pytest.raises(OptionError) as raised:
        attempt(lambda: fail(ValueError("long " * 1000)), "cannot", OSError, ValueError)
    assert len(str(raised.value)) < 400
    with pytest.raises(KeyError):
        attempt(lambda: fail(KeyError("k")), "cannot", OSError)
    assert attempt(lambda: 3, "cannot", OSError) == 3
