from __future__ import annotations

import numpy as np
import pytest
import torch

from queen.bench.datasets import SETS, DataError, load_set
from queen.errors import OptionError, QueenError
from tests.support import official_sets as official
from tests.support.official_sets import bytes_of, noise, photo, write_folder
from tests.support.paths import ROOT


def test_official_archives_and_packs_are_found_and_named(root):
    batches = official.cifar10_batches()
    cifar = load_set("cifar10", "test", root=root)
    assert np.array_equal(bytes_of(cifar.x), batches["test_batch"][0].reshape(-1, 3, 32, 32))
    assert cifar.y.tolist() == batches["test_batch"][1]
    assert (cifar.x.dtype, cifar.y.dtype) == (torch.float32, torch.int64)
    assert cifar.source == "cifar-10-binary.tar.gz"
    mnist = load_set("mnist", "train", root=root)
    assert np.array_equal(bytes_of(mnist.x)[:, 0], noise(30, 28, 28))
    assert mnist.source == "mnist_lossless.npz (packed)"
    assert len(load_set("mnist", "all", root=root).y) == 40


def test_an_official_archive_goes_before_a_pack_also_in_a_folder_of_its_own(root):
    write_folder(official.mnist_files({"train": "train", "test": "t10k"}), root / "mnist")
    images = load_set("mnist", "train", root=root)
    assert images.source == "mnist/train-images-idx3-ubyte.gz"
    assert len(images.y) == 12


PLACES = {
    "cifar10": official.cifar10_python(official.cifar10_batches()),
    "tinyimagenet": official.tinyimagenet(),
    "cub200": official.cub200(),
    "caltech256": official.caltech256(),
    "indoor67": {f"indoor67/{name}": data for part in official.indoor67() for name, data in part.items()},
    "imagenet": {f"imagenet/{split}/n0{i % 2}/{i}.JPEG": photo(i) for split in ("train", "val") for i in range(4)},
    "folder": {f"{split}/c{i % 2}/{i}.png": photo(i) for split in ("train", "test") for i in range(4)},
    "mnist": {f"MNIST/raw/{n}": d for n, d in official.mnist_files({"train": "train", "test": "t10k"}).items()},
}


@pytest.mark.parametrize("name", PLACES)
def test_extracted_folders_are_found(name, tmp_path):
    write_folder(PLACES[name], tmp_path)
    images = load_set(name, "train", root=tmp_path, size=6, channels=1)
    assert images.x.shape[1:] == (1, 6, 6)
    assert images.x.min() >= 0
    assert images.x.max() <= 1
    assert (tmp_path / images.source).exists()
    assert len(load_set(name, "test", root=tmp_path, size=6).y) > 0


def test_the_root_is_an_argument_a_variable_or_the_folder_data(root, monkeypatch, tmp_path):
    monkeypatch.delenv("QUEEN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert load_set("cifar10", "test").source == "cifar-10-binary.tar.gz"
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("QUEEN_DATA", str(tmp_path / "other"))
    with pytest.raises(OptionError, match=r"the data set 'cifar10' is not in '.*other'"):
        load_set("cifar10", "test")
    assert load_set("cifar10", "test", root=root)
    monkeypatch.setenv("QUEEN_DATA", str(root))
    monkeypatch.chdir(tmp_path / "other")
    assert load_set("cifar10", "test")


@pytest.mark.parametrize("name", [name for name, dataset in SETS.items() if hasattr(dataset, "places")])
def test_what_is_missing_is_said_with_where_to_get_and_to_put_it(name, tmp_path):
    with pytest.raises(OptionError) as error:
        load_set(name, "train", root=tmp_path / "nowhere")
    message, dataset = str(error.value), SETS[name]
    for part in (
        *dataset.places,
        *([dataset.pack.file] if dataset.pack else []),
        dataset.publisher,
        "nowhere",
        "QUEEN_DATA",
    ):
        assert part in message
    guide = ROOT / "docs" / "data.md"
    assert "docs/data.md" in message
    assert f"`{name}`" in guide.read_text()
    for part in (*dataset.places, *([dataset.pack.file] if dataset.pack else [])):
        assert f"`{part}`" in guide.read_text()


@pytest.mark.parametrize(
    ("name", "split", "options", "message"),
    [
        ("cifar", "train", {}, "no data set 'cifar'; known: digits, mnist5k, .*; did you mean 'cifar10'?"),
        ("digits", "val", {}, "no split 'val'; known: train, test, all"),
        ("digits", "train", {"size": 0}, "size must be a whole number of at least 1, got 0"),
        ("digits", "train", {"size": 8.0}, "size must be a whole number"),
        ("digits", "train", {"count": True}, "count must be a whole number"),
        ("digits", "train", {"channels": 2}, "channels must be 1 or 3, got 2"),
    ],
)
def test_unknown_names_and_values_are_refused(name, split, options, message):
    with pytest.raises(OptionError, match=message):
        load_set(name, split, **options)


def test_splits_that_do_not_go_together_are_not_joined(tmp_path):
    files = {f"train/{c}/x.png": photo(1) for c in "ab"} | {f"val/{c}/x.png": photo(2) for c in "abc"}
    write_folder(files, tmp_path)
    with pytest.raises(OptionError, match="other sizes or other classes"):
        load_set("folder", "all", root=tmp_path)


def test_a_damaged_archive_is_an_error_of_ours(root):
    (root / "cifar-10-binary.tar.gz").write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=r"cannot read 'cifar-10-binary.tar.gz'"):
        load_set("cifar10", "train", root=root)
    assert issubclass(DataError, QueenError)


def test_the_caller_may_change_what_it_got(root, tmp_path):
    for _ in range(3):
        images = load_set("cifar10", "test", root=root, cache=tmp_path / "cache")
        assert images.x.max() <= 1
        images.x.add_(5)
        images.y.add_(5)
