from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from queen.bench.datasets import archives
from queen.bench.datasets.pixels import Pixels, Selection
from queen.errors import OptionError
from tests.support import official_sets as official
from tests.support.official_sets import decoded, noise, photo, python2_pickle, write_folder, write_tar, write_zip

TRAIN, TEST = Selection("train"), Selection("test")


def check(pixels: Pixels, x: np.ndarray, y: list[int]) -> None:
    assert pixels.x.dtype == np.uint8
    assert np.array_equal(pixels.x, x)
    assert pixels.y.dtype == np.int64
    assert pixels.y.tolist() == y


CIFAR10_PLACES = {
    "cifar-10-python.tar.gz": official.cifar10_python,
    "cifar-10-batches-py": official.cifar10_python,
    "cifar-10-binary.tar.gz": official.cifar10_binary,
    "cifar-10-batches-bin": official.cifar10_binary,
}


def lay_out(files: official.Files, form: str, top: Path, archive: str, folder: str) -> Path:
    """The files as an archive, or unpacked: the path that a reader gets."""
    if form == "folder":
        return write_folder(files, top) / folder
    write = write_zip if form == "zip" else write_tar
    return write(files, top / archive)


@pytest.mark.parametrize("place", CIFAR10_PLACES)
def test_cifar10_in_every_published_form(place, tmp_path):
    batches = official.cifar10_batches()
    write = write_tar if place.endswith(".gz") else lambda files, path: write_folder(files, path.parent)
    write(CIFAR10_PLACES[place](batches), tmp_path / place)
    train = [batches[f"data_batch_{i}"] for i in range(1, 6)]
    x = np.concatenate([x for x, _ in train]).reshape(-1, 3, 32, 32)
    check(archives.cifar10(tmp_path / place, TRAIN), x, [label for _, y in train for label in y])
    x, y = batches["test_batch"]
    pixels = archives.cifar10(tmp_path / place, TEST)
    check(pixels, x.reshape(-1, 3, 32, 32), y)
    assert pixels.classes[3] == "cat"


@pytest.mark.parametrize("place", ["cifar-100-python.tar.gz", "cifar-100-python", "cifar-100-binary.tar.gz"])
def test_cifar100_in_every_published_form_has_its_fine_labels(place, tmp_path):
    names, coarse = [b"apple", b"fish", b"baby"], [b"fruit", b"people"]
    sets = {
        split: (noise(n, 3072, seed=n), [(i * i) % 3 for i in range(n)]) for split, n in (("train", 7), ("test", 3))
    }
    if "python" in place:
        files = {
            split: python2_pickle({b"data": x, b"fine_labels": y, b"coarse_labels": [0] * len(y)})
            for split, (x, y) in sets.items()
        }
        files["meta"] = python2_pickle({b"fine_label_names": names, b"coarse_label_names": coarse})
        files = {f"cifar-100-python/{name}": data for name, data in files.items()}
    else:
        files = {
            f"cifar-100-binary/{split}.bin": np.column_stack([np.ones(len(y), np.uint8), np.uint8(y), x]).tobytes()
            for split, (x, y) in sets.items()
        }
        files["cifar-100-binary/fine_label_names.txt"] = b"\n".join(names) + b"\n"
    write = write_tar if place.endswith(".gz") else lambda files, path: write_folder(files, path.parent)
    write(files, tmp_path / place)
    for split, (x, y) in sets.items():
        pixels = archives.cifar100(tmp_path / place, Selection(split))
        check(pixels, x.reshape(-1, 3, 32, 32), y)
        assert pixels.classes == ("apple", "fish", "baby")


def test_svhn_counts_its_tens_as_zeros(tmp_path):
    for split, count in (("train", 12), ("test", 4)):
        x, y = noise(32, 32, 3, count, seed=count), np.arange(1, count + 1)[:, None] % 11
        scipy.io.savemat(tmp_path / f"{split}_32x32.mat", {"X": x, "y": y.astype(np.uint8)}, do_compression=True)
        pixels = archives.svhn(tmp_path / "train_32x32.mat", Selection(split))
        check(pixels, np.stack([x[..., i].transpose(2, 0, 1) for i in range(count)]), (y.ravel() % 10).tolist())
        assert pixels.classes == tuple("0123456789")


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(zipped, tmp_path):
    files = official.mnist_files({"train": "train", "test": "t10k"}, zipped=zipped)
    write_folder(files, tmp_path)
    check(archives.mnist(tmp_path / min(files), TRAIN), noise(12, 1, 28, 28, seed=0), [i % 10 for i in range(12)])
    check(archives.mnist(tmp_path / min(files), TEST), noise(5, 1, 28, 28, seed=1), list(range(5)))


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_emnist_letters_stand_upright_and_are_numbered_from_zero(form, tmp_path):
    begin = {split: f"emnist-letters-{split}" for split in ("train", "test")}
    files = official.mnist_files(begin, first_label=1)
    if form == "zip":
        path = write_zip({f"gzip/{name}": data for name, data in files.items()}, tmp_path / "gzip.zip")
    else:
        path = write_folder(files, tmp_path) / min(files)
    pixels = archives.emnist(path, TEST)
    check(pixels, noise(5, 1, 28, 28, seed=1).transpose(0, 1, 3, 2), list(range(5)))
    assert pixels.classes[:3] == ("a", "b", "c")


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_tinyimagenet_numbers_its_classes_by_the_alphabet(form, tmp_path):
    files = official.tinyimagenet()
    path = lay_out(files, form, tmp_path, "tiny-imagenet-200.zip", "tiny-imagenet-200")
    names = [f"train/{wnid}/images/{wnid}_{i}.JPEG" for wnid in ("n01", "n02") for i in range(3)]
    x = np.stack([decoded(files[f"tiny-imagenet-200/{name}"]) for name in names])
    check(archives.tinyimagenet(path, TRAIN), x, [0, 0, 0, 1, 1, 1])
    x = np.stack([decoded(files[f"tiny-imagenet-200/val/images/val_{i}.JPEG"]) for i in (3, 0, 1, 2)])
    pixels = archives.tinyimagenet(path, TEST)
    check(pixels, x, [0, 1, 0, 1])
    assert pixels.classes == ("n01", "n02")


@pytest.mark.parametrize("form", ["tgz", "folder"])
def test_cub200_has_its_official_split_and_wants_a_size(form, tmp_path):
    files = official.cub200()
    path = lay_out(files, form, tmp_path, "CUB_200_2011.tgz", "CUB_200_2011")
    with pytest.raises(OptionError, match=r"different sizes, such as 5x9 and 7x9: choose one with size="):
        archives.cub200(path, TRAIN)
    train, test = (archives.cub200(path, Selection(split, size=4)) for split in ("train", "test"))
    assert (train.x.shape, test.x.shape) == ((3, 3, 4, 4), (3, 3, 4, 4))
    assert train.y.tolist() == test.y.tolist() == [0, 1, 2]
    assert train.classes == ("Black_footed_Albatross", "Laysan_Albatross", "Sooty_Albatross")
    # 9x9 is one image's whole height: its middle square is left as it is.
    name = "001.Black_footed_Albatross/Black_footed_Albatross_0000.jpg"
    whole = decoded(files[f"CUB_200_2011/images/{name}"])
    assert np.array_equal(archives.cub200(path, Selection("train", size=5)).x[0], whole[:, :, 2:7])


@pytest.mark.parametrize("form", ["tar", "folder"])
def test_caltech256_holds_25_images_of_each_class_back(form, tmp_path):
    files = official.caltech256()
    shuffled = dict(reversed(files.items()))
    path = lay_out(shuffled, form, tmp_path, "256_ObjectCategories.tar", "256_ObjectCategories")
    train, test = archives.caltech256(path, TRAIN), archives.caltech256(path, TEST)
    assert np.bincount(test.y).tolist() == [25, 25]
    assert np.bincount(train.y).tolist() == [5, 5]
    assert train.classes == ("001.ak47", "002.american-flag")
    images = {(y, x.tobytes()) for part in (train, test) for x, y in zip(part.x, part.y, strict=True)}
    expected = {
        (k, decoded(data).tobytes())
        for k, name in enumerate(train.classes)
        for file, data in files.items()
        if name in file and file.endswith(".jpg")
    }
    assert len(expected) == 60
    assert images == expected
    again = archives.caltech256(path, TEST)
    assert np.array_equal(again.x, test.x)


def test_caltech101_leaves_its_background_out(tmp_path):
    names = [f"{name}/image_{i:04}.jpg" for name in ("accordion", "BACKGROUND_Google", "ant") for i in range(28)]
    files = {f"101_ObjectCategories/{name}": photo(i, 4, 4) for i, name in enumerate(names)}
    path = write_tar(files, tmp_path / "101_ObjectCategories.tar.gz")
    assert archives.caltech101(path, TEST).classes == ("accordion", "ant")
    assert np.bincount(archives.caltech101(path, TRAIN).y).tolist() == [3, 3]


@pytest.mark.parametrize("form", ["tar", "folder"])
def test_indoor67_follows_the_lists_beside_it(form, tmp_path):
    images, lists = official.indoor67()
    write_folder(lists, tmp_path)
    path = lay_out(images, form, tmp_path, "indoorCVPR_09.tar", "Images")
    train = archives.indoor67(path, TRAIN)
    order = ["airport_inside/air_1.jpg", "kitchen/kit_0.jpg", "kitchen/kit_1.jpg", "airport_inside/air_0.jpg"]
    check(train, np.stack([decoded(images[f"Images/{name}"]) for name in order]), [0, 1, 1, 0])
    assert train.classes == ("airport_inside", "kitchen")
    assert archives.indoor67(path, TEST).y.tolist() == [1, 0]


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_class_folders_as_of_imagenet(held_out, tmp_path):
    files = {f"train/n0{k}/n0{k}_{i}.JPEG": photo(10 * k + i) for k in (2, 1) for i in range(2)}
    files |= {f"{held_out}/n0{k}/v_{k}.JPEG": photo(50 + k) for k in (1, 2)}
    write_folder(files | {"train/n01/notes.txt": b"no image", "train/.DS_Store": b"x"}, tmp_path)
    train = archives.class_folders(tmp_path / "train", TRAIN)
    names = ["train/n01/n01_0.JPEG", "train/n01/n01_1.JPEG", "train/n02/n02_0.JPEG", "train/n02/n02_1.JPEG"]
    check(train, np.stack([decoded(files[name]) for name in names]), [0, 0, 1, 1])
    assert archives.class_folders(tmp_path / "train", TEST).y.tolist() == [0, 1]


def test_a_selection_is_fixed_and_decodes_nothing_else(tmp_path):
    files = {f"train/c{i % 2}/{i:03}.png": photo(i) for i in range(40)}
    write_folder(files, tmp_path)
    everything = archives.class_folders(tmp_path / "train", TRAIN)
    some = archives.class_folders(tmp_path / "train", Selection("train", count=9))
    rows = [next(r for r, x in enumerate(everything.x) if np.array_equal(x, one)) for one in some.x]
    assert len(rows) == 9
    assert rows == sorted(rows)
    assert rows != list(range(9))
    assert some.y.tolist() == everything.y[rows].tolist()
    selected = {sorted(files)[row] for row in rows}
    for name in files.keys() - selected:
        (tmp_path / name).write_bytes(b"broken")
    assert np.array_equal(archives.class_folders(tmp_path / "train", Selection("train", count=9)).x, some.x)
