from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from queen.bench.datasets import archives
from queen.bench.datasets.pixels import Pixels, Selection, apply_selection, choose_rows, recolour, resize, rows_in_split
from queen.bench.datasets.trees import DataError
from queen.errors import OptionError
from tests.support.official_sets import noise, photo, write_folder


def pixels(n: int = 5, channels: int = 3, height: int = 12, width: int = 12) -> Pixels:
    return Pixels(noise(n, channels, height, width), np.arange(n) % 3, ("a", "b", "c"))


@pytest.mark.parametrize("size", [4, 5, 7, 12, 16, 25])
def test_images_are_resized_as_pillow_and_torchvision_do(size):
    made = apply_selection(pixels(), Selection("train", size=size)).x
    assert made.dtype == np.uint8
    for one, original in zip(made, pixels().x, strict=True):
        image = Image.fromarray(original.transpose(1, 2, 0)).resize((size, size), Image.Resampling.BILINEAR)
        assert np.abs(one.astype(int) - np.asarray(image).transpose(2, 0, 1)).max() <= 1  # rounds twice
    plain = torch.nn.functional.interpolate(torch.from_numpy(pixels().x).float(), (size, size), mode="bilinear")
    if size < 8:  # without smoothing, shrunken noise would be noisier
        assert plain.std() > 1.2 * made.std()


@pytest.mark.parametrize(("height", "width"), [(9, 6), (6, 9), (6, 7)])
def test_the_middle_square_is_kept(height, width):
    x = pixels(height=height, width=width).x
    top, left = (height - 6) // 2, (width - 6) // 2
    assert np.array_equal(
        apply_selection(pixels(height=height, width=width), Selection("train", size=6)).x,
        x[..., top : top + 6, left : left + 6],
    )
    assert apply_selection(pixels(height=height, width=width), Selection("train")).x.shape == x.shape


def test_floats_stay_floats_and_are_not_rounded():
    x = np.linspace(0, 1, 2 * 64, dtype=np.float32).reshape(2, 1, 8, 8)
    made = apply_selection(Pixels(x, np.zeros(2, np.int64), ("a",)), Selection("train", size=4, channels=3)).x
    assert made.dtype == np.float32
    assert np.abs(made * 255 - (made * 255).round()).max() > 0.1
    assert np.array_equal(made, np.repeat(made[:, :1], 3, axis=1))


def test_grey_is_what_pillow_calls_grey_and_colour_is_three_greys():
    grey = apply_selection(pixels(), Selection("train", channels=1)).x
    expected = np.stack([np.asarray(Image.fromarray(x.transpose(1, 2, 0)).convert("L"))[None] for x in pixels().x])
    assert np.abs(grey.astype(int) - expected).max() <= 1
    back = apply_selection(Pixels(grey, pixels().y, ("a", "b", "c")), Selection("train", channels=3)).x
    assert all(np.array_equal(back[:, k : k + 1], grey) for k in range(3))
    x = torch.rand(2, 3, 4, 4)
    assert recolour(x, 3) is x
    assert resize(x, None) is x


def test_what_fits_is_not_copied():
    whole = pixels()
    assert apply_selection(whole, Selection("train", size=12, channels=3, count=99)).x is whole.x


def test_large_sets_are_resized_in_parts(monkeypatch):
    expected = apply_selection(pixels(9), Selection("train", size=5)).x
    monkeypatch.setattr("queen.bench.datasets.pixels.CHUNK", 4)
    assert np.array_equal(apply_selection(pixels(9), Selection("train", size=5)).x, expected)


def test_a_selection_is_the_same_every_time():
    assert choose_rows(1000, 10).tolist() == choose_rows(1000, 10).tolist()
    assert len(set(choose_rows(1000, 300).tolist())) == 300
    assert (np.diff(choose_rows(1000, 300)) > 0).all()
    assert choose_rows(5, None).tolist() == choose_rows(5, 5).tolist() == choose_rows(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert choose_rows(20, 5).tolist() == [2, 7, 11, 15, 17]  # pinned: results depend on it


def test_every_image_is_in_one_split():
    y = np.random.default_rng(0).integers(0, 4, 200)
    for per_class, expected in ((None, np.bincount(y) // 5), (25, [25] * 4)):
        train, test = (rows_in_split(y, split, per_class) for split in ("train", "test"))
        assert sorted([*train, *test]) == list(range(200))
        assert np.bincount(y[test]).tolist() == list(expected)
    assert rows_in_split(np.repeat([0, 1], [30, 27]), "train", 25).tolist() == [3, 13, 14, 22, 25, 38, 41]  # pinned


def test_a_small_class_keeps_an_image_to_learn_from():
    y = np.array([0, 1, 1, 1])
    assert np.bincount(y[rows_in_split(y, "train", 25)]).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (noise(2, 3, 4, 4), [0], "expected images"),
        (noise(2, 4, 4), [0, 0], "expected images"),
        (noise(0, 3, 4, 4), [], "no images"),
        (noise(2, 3, 4, 4), [0, 2], "labels from 0 to 1, got 0 to 2"),
        (noise(2, 3, 4, 4), [-1, 1], "labels from 0 to 1, got -1 to 1"),
    ],
)
def test_pixels_and_labels_must_belong_together(x, y, message):
    with pytest.raises(DataError, match=message):
        Pixels(x, np.array(y, np.int64), ("a", "b"))


def test_without_pillow_it_is_named(tmp_path, monkeypatch):
    write_folder({"train/c/x.png": photo(1)}, tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match=r"Pillow: pip install 'queen-guard\[bench\]'"):
        archives.class_folders(tmp_path / "train", Selection("train"))


def test_some_formats_are_not_even_tried(tmp_path):
    """Pillow hands PostScript to another program, which a data set has no reason to run."""
    buffer = io.BytesIO()
    Image.fromarray(noise(4, 4, 3)).save(buffer, "EPS")
    write_folder({"train/c/x.png": buffer.getvalue()}, tmp_path)
    with pytest.raises(DataError, match=r"cannot read 'train, c/x.png': cannot identify"):
        archives.class_folders(tmp_path / "train", Selection("train"))
