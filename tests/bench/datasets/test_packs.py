from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import features

from queen.bench.datasets.packs import Pack
from queen.bench.datasets.pixels import Selection
from queen.bench.datasets.trees import DataError
from queen.errors import OptionError, QueenError
from tests.support.official_sets import noise
from tests.support.packs import encoded, write_pack

LABELS = np.arange(20, dtype=np.uint8) % 4


@pytest.mark.parametrize("count", [1, 5, 6, 7, 20])
@pytest.mark.parametrize("shape", [(8, 8, 3), (28, 28)], ids=["colour", "grey"])
@pytest.mark.parametrize("options", [{"kind": "WEBP", "lossless": True}, {"kind": "PNG"}], ids=["webp", "png"])
def test_every_tile_comes_back_in_order(count, shape, options, tmp_path):
    x = noise(count, *shape)
    path = write_pack(tmp_path / "p.npz", options=options, train=x, y_train=LABELS[:count])
    pixels = Pack("p.npz").read(path, Selection("train"))
    expected = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(pixels.x, expected)
    assert pixels.y.tolist() == LABELS[:count].tolist()
    assert pixels.y.dtype == np.int64


def test_avif_comes_back_nearly(tmp_path):
    x = np.repeat(np.repeat(noise(4, 4, 4, 3), 4, 1), 4, 2)  # smooth enough for AVIF
    options = {"kind": "AVIF", "quality": 95, "subsampling": "4:4:4"}
    path = write_pack(tmp_path / "p.npz", options=options, train=x, y_train=LABELS[:4])
    pixels = Pack("p.npz").read(path, Selection("train")).x.transpose(0, 2, 3, 1)
    assert np.abs(pixels.astype(int) - x).mean() < 4
    assert np.abs(pixels[::-1].astype(int) - x).mean() > 20


def test_the_splits_of_a_pack_have_names_of_their_own(tmp_path):
    x = noise(7, 8, 8, 3)
    path = write_pack(tmp_path / "p.npz", aux=x, y_aux=LABELS[:7])
    pack = Pack("p.npz", {"train": "aux"})
    assert np.array_equal(pack.read(path, Selection("train")).x, x.transpose(0, 3, 1, 2))
    with pytest.raises(OptionError, match=r"'p.npz' has no split 'test', only train: put the official archive beside"):
        pack.read(path, Selection("test"))


@pytest.mark.parametrize(
    ("stored", "given", "expected"),
    [
        ({}, (), ("0", "1", "2", "3")),
        ({"names": np.array(list("wxyz"))}, (), ("w", "x", "y", "z")),
        ({"fine_names": np.array(list("wxyz")), "coarse_names": np.array(["c"])}, (), ("w", "x", "y", "z")),
        ({"classes": np.array(list("wxyz"))}, ("a", "b", "c", "d"), ("a", "b", "c", "d")),
    ],
    ids=["none", "names", "fine names", "given"],
)
def test_classes_have_the_given_or_the_stored_names_or_numbers(stored, given, expected, tmp_path):
    path = write_pack(tmp_path / "p.npz", train=noise(8, 8, 8, 3), y_train=LABELS[:8], **stored)
    assert Pack("p.npz", classes=given).read(path, Selection("train")).classes == expected


def test_a_class_can_be_left_out_and_the_split_be_drawn(tmp_path):
    x, y = noise(120, 8, 8, 3), np.arange(120) % 4
    path = write_pack(tmp_path / "p.npz", x=x, y_x=y.astype(np.uint8), names=np.array(list("wxyz")))
    pack = Pack("p.npz", {"train": "x", "test": "x"}, per_class=25, without="x")
    train, test = (pack.read(path, Selection(split)) for split in ("train", "test"))
    assert train.classes == ("w", "y", "z")
    assert np.bincount(test.y).tolist() == [25, 25, 25]
    assert np.bincount(train.y).tolist() == [5, 5, 5]
    images = {(label, one.tobytes()) for part in (train, test) for one, label in zip(part.x, part.y, strict=True)}
    expected = {(["wyz".index("wxyz"[k])][0], x[i].transpose(2, 0, 1).tobytes()) for i, k in enumerate(y) if k != 1}
    assert images == expected
    with pytest.raises(DataError, match="expected a class 'nothing'"):
        Pack("p.npz", {"train": "x"}, without="nothing").read(path, Selection("train"))


def test_labels_can_be_folded(tmp_path):
    path = write_pack(tmp_path / "p.npz", train=noise(4, 8, 8, 3), y_train=np.array([10, 35, 36, 61], np.uint8))
    pack = Pack("p.npz", classes=tuple("abcdefghijklmnopqrstuvwxyz"), relabel=lambda y: (y - 10) % 26)
    assert pack.read(path, Selection("train")).y.tolist() == [0, 25, 0, 25]


GOOD = {"tile": np.array([8, 3]), "train/000": encoded(noise(16, 24, 3), "PNG"), "train/n": np.array(6),
        "y_train": LABELS[:6]}  # fmt: skip
WRONG = {
    "no tile": {"tile": None},
    "a tile of three": {"tile": np.array([8, 3, 1])},
    "another width": {"tile": np.array([8, 4])},
    "a broken row": {"train/000": encoded(noise(15, 24, 3), "PNG")},
    "no side": {"tile": np.array([0, 3])},
    "fewer images": {"train/n": np.array(7)},
    "a negative count": {"train/n": np.array(-1)},
    "no count": {"train/n": None},
    "no labels": {"y_train": None},
    "fewer labels": {"y_train": LABELS[:5]},
    "no images": {"train/000": None},
    "half a mosaic": {"train/000": GOOD["train/000"][:100]},
    "no mosaic": {"train/000": LABELS},
    "another format": {"train/000": encoded(noise(16, 24, 3), "BMP")},
    "pickled labels": {"y_train": np.array([0, 1, 2, 3, 0, None], object)},
}


def test_the_pack_that_is_broken_below_is_good(tmp_path):
    np.savez(tmp_path / "p.npz", **GOOD)
    assert len(Pack("p.npz").read(tmp_path / "p.npz", Selection("train")).y) == 6


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_strange_pack_is_one_clear_error(change, tmp_path):
    np.savez(tmp_path / "p.npz", **{key: value for key, value in (GOOD | change).items() if value is not None})
    with pytest.raises(DataError):
        Pack("p.npz").read(tmp_path / "p.npz", Selection("train"))


@given(where=st.floats(0, 1), flip=st.integers(0, 255))
def test_whatever_is_damaged_no_foreign_error_comes_out(where, flip, tmp_path_factory):
    path = tmp_path_factory.mktemp("packs") / "p.npz"
    np.savez(path, **GOOD)
    data = path.read_bytes()
    place = int(where * (len(data) - 1))
    path.write_bytes(data[:place] if flip == 0 else data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
    try:
        assert len(Pack("p.npz").read(path, Selection("train")).y) == 6
    except QueenError as error:
        assert str(error)  # noqa: PT017


def test_what_pillow_cannot_read_is_said(tmp_path, monkeypatch):
    path = write_pack(tmp_path / "p.npz", options={"kind": "AVIF"}, train=noise(4, 8, 8, 3), y_train=LABELS[:4])
    with monkeypatch.context() as patch:
        patch.setattr(features, "get_supported", lambda: ["webp"])
        with pytest.raises(OptionError, match=r"needs Pillow 11\.3 or newer, built with AVIF"):
            Pack("p.npz").read(path, Selection("train"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match=r"pip install 'queen-guard\[bench\]'"):
        Pack("p.npz").read(path, Selection("train"))


def test_an_array_that_calls_itself_a_pack_is_refused(tmp_path):
    with (tmp_path / "p.npz").open("wb") as file:
        np.save(file, LABELS)
    with pytest.raises(DataError, match=r"cannot read 'p.npz'"):
        Pack("p.npz").read(tmp_path / "p.npz", Selection("train"))
