"""Archives that are incomplete, damaged or hostile: each is one clear error, and none runs code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from queen.bench.datasets import DataError, archives
from queen.bench.datasets.pixels import Selection
from queen.errors import QueenError
from tests.support import official_sets as official
from tests.support.official_sets import noise, photo, python2_pickle, write_folder, write_tar, write_zip

TRAIN, TEST = Selection("train"), Selection("test")


def test_a_missing_batch_is_named(tmp_path):
    files = official.cifar10_python(official.cifar10_batches())
    del files["cifar-10-batches-py/data_batch_3"]
    path = write_tar(files, tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(DataError, match=r"'cifar-10-python.tar.gz' has no file 'data_batch_3'; is the copy complete"):
        archives.cifar10(path, TRAIN)
    assert len(archives.cifar10(path, TEST).y) == 4


@pytest.mark.parametrize(
    "content",
    [
        {b"data": noise(2, 3071), b"labels": [0, 1]},
        {b"data": noise(2, 3072), b"labels": [0]},
        {b"data": noise(2, 3072), b"labels": [0, 10]},
        {b"data": noise(2, 3072), b"labels": [0, -1]},
        {b"data": noise(2, 3072), b"labels": [b"cat", b"dog"]},
        {b"data": noise(0, 3072), b"labels": []},
        {b"data": [1, 2], b"labels": [0, 1]},
        {b"data": noise(2, 3072)},
        {b"labels": [0, 1]},
        {},
        [b"data"],
        b"data",
    ],
    ids=range(12),
)
def test_a_strange_cifar_batch_is_one_clear_error(content, tmp_path):
    path = write_folder({"cifar-10-batches-py/test_batch": python2_pickle(content)}, tmp_path) / "cifar-10-batches-py"
    with pytest.raises(DataError):
        archives.cifar10(path, TEST)


def test_a_batch_that_would_run_code_is_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "marker"), "w")

    bomb = pickle.dumps({b"data": Bomb(), b"labels": [0]}, protocol=2)
    path = write_folder({"cifar-10-batches-py/test_batch": bomb}, tmp_path) / "cifar-10-batches-py"
    with pytest.raises(DataError, match=r"cannot read 'test_batch': it asks for '\w+\.open'"):
        archives.cifar10(path, TEST)
    assert not (tmp_path / "marker").exists()
    pickle.loads(bomb)[b"data"].close()
    assert (tmp_path / "marker").exists()  # it was a real one


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (b"\0\0\x0d\x03" + bytes(12), official.idx(np.arange(2)), "expected an idx file of bytes in 3 dimensions"),
        (official.idx(np.arange(4)), official.idx(np.arange(2)), "expected an idx file of bytes in 3 dimensions"),
        (official.idx(noise(2, 28, 28))[:-1], official.idx(np.arange(2)), "reshape"),
        (official.idx(noise(2, 28, 28)) + b"\0", official.idx(np.arange(2)), "reshape"),
        (official.idx(noise(2, 28, 28)), official.idx(np.arange(3)), "3 labels|n labels"),
        (official.idx(noise(2, 28, 28)), official.idx(np.array([0, 10])), "labels from 0 to 9, got 0 to 10"),
        (b"", official.idx(np.arange(2)), "idx"),
        (b"\x1f\x8b garbage", official.idx(np.arange(2)), "cannot read"),
    ],
    ids=["kind", "dimensions", "short", "long", "count", "label", "empty", "gzip"],
)
def test_a_strange_idx_file_is_one_clear_error(images, labels, message, tmp_path):
    write_folder({"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels}, tmp_path)
    with pytest.raises(DataError, match=message):
        archives.mnist(tmp_path / "train-images-idx3-ubyte", TRAIN)


@pytest.mark.parametrize(
    "content",
    [
        {"X": noise(32, 32, 3, 2)},
        {"X": noise(32, 32, 3, 2).astype(float), "y": [1, 2]},
        {"X": noise(4), "y": [1]},
        None,
    ],
    ids=["no labels", "floats", "shape", "garbage"],
)
def test_a_strange_mat_file_is_one_clear_error(content, tmp_path):
    path = tmp_path / "train_32x32.mat"
    if content is None:
        path.write_bytes(noise(1000).tobytes())
    else:
        scipy.io.savemat(path, content)
    with pytest.raises(
        DataError, match=r"cannot read 'train_32x32.mat'|expected images|expected arrays X and y|MATLAB 5"
    ):
        archives.svhn(path, TRAIN)
    with pytest.raises(DataError, match=r"has no file 'test_32x32.mat'"):
        archives.svhn(path, TEST)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images.txt", b"1 ../../secret.jpg\n", "has no file 'images/../../secret.jpg'"),
        ("images.txt", b"1 001.Black_footed_Albatross/nothing.jpg\n", "has no file"),
        ("images.txt", b"1\n", "expected lines of at least 2 words in 'images.txt'"),
        ("images.txt", b"\xff\xfe\n", "cannot read 'images.txt'"),
        ("images.txt", b"", "no images of the split 'train'"),
        ("image_class_labels.txt", b"1 1\n", "cannot read 'images.txt'"),
        ("image_class_labels.txt", b"".join(b"%d 9\n" % i for i in range(1, 7)), "cannot read 'images.txt'"),
        ("images/001.Black_footed_Albatross/Black_footed_Albatross_0000.jpg", b"junk", "cannot identify"),
    ],
)
def test_strange_lists_of_images_are_one_clear_error(name, content, message, tmp_path):
    path = write_folder(official.cub200() | {f"CUB_200_2011/{name}": content}, tmp_path) / "CUB_200_2011"
    write_folder({"secret.jpg": photo(1)}, tmp_path)
    with pytest.raises(DataError, match=message):
        archives.cub200(path, Selection("train", size=4))


def test_an_image_twice_in_a_list_or_of_an_unknown_class_is_refused(tmp_path):
    images, lists = official.indoor67()
    write_folder(images | lists | {"TestImages.txt": b"kitchen/kit_0.jpg\nkitchen/kit_0.jpg\n"}, tmp_path)
    with pytest.raises(DataError, match="lists an image twice"):
        archives.indoor67(tmp_path / "Images", TEST)
    files = official.tinyimagenet() | {"tiny-imagenet-200/wnids.txt": b"n01\n"}
    path = write_folder(files, tmp_path) / "tiny-imagenet-200"
    for wanted in (TRAIN, TEST):
        with pytest.raises(DataError, match="an image of class 'n02', which is not in the list of classes"):
            archives.tinyimagenet(path, wanted)


def test_a_folder_without_its_splits_or_classes_is_refused(tmp_path):
    write_folder({"train/image.png": photo(0)}, tmp_path)
    with pytest.raises(DataError, match="has no images of the split 'train'"):
        archives.class_folders(tmp_path / "train", TRAIN)
    with pytest.raises(DataError, match="expected a folder 'val' with a folder for each class"):
        archives.class_folders(tmp_path / "train", TEST)


def test_deep_greys_are_refused_instead_of_clipped(tmp_path):
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(noise(4, 4).astype(np.uint16) * 257).save(buffer, "PNG")
    write_folder({"train/c/deep.png": buffer.getvalue()}, tmp_path)
    with pytest.raises(DataError, match="expected 8 bits a colour"):
        archives.class_folders(tmp_path / "train", TRAIN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, tuple[Path, bytes]]:
    top = tmp_path_factory.mktemp("whole")
    letters = official.mnist_files({"train": "emnist-letters-train"}, first_label=1)
    made = {
        "cifar10": write_tar(official.cifar10_python(official.cifar10_batches(2)), top / "cifar-10-python.tar.gz"),
        "tinyimagenet": write_zip(official.tinyimagenet(), top / "tiny-imagenet-200.zip"),
        "cub200": write_tar(official.cub200(), top / "CUB_200_2011.tgz"),
        "caltech256": write_tar(official.caltech256(per_class=2), top / "256_ObjectCategories.tar"),
        "emnist": write_zip({f"gzip/{name}": data for name, data in letters.items()}, top / "gzip.zip"),
    }
    return {name: (path, path.read_bytes()) for name, path in made.items()}


@pytest.mark.parametrize("name", ["cifar10", "tinyimagenet", "cub200", "caltech256", "emnist"])
@given(where=st.floats(0, 1), flip=st.integers(0, 255))
def test_whatever_is_damaged_no_foreign_error_comes_out(name, whole, where, flip):
    path, data = whole[name]
    read = getattr(archives, name)
    place = int(where * (len(data) - 1))
    cut = data[:place] if flip == 0 else data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
    path.write_bytes(cut)
    try:
        pixels = read(path, Selection("train", size=6))
    except QueenError as error:
        assert str(error)  # noqa: PT017
    else:
        assert len(pixels.x) == len(pixels.y) > 0
    finally:
        path.write_bytes(data)
    assert len(read(path, Selection("train", size=6)).y) > 0


@pytest.mark.parametrize("name", ["cifar10", "tinyimagenet", "cub200", "emnist"])
def test_half_an_archive_is_refused(name, whole, tmp_path):
    path, data = whole[name]
    half = tmp_path / path.name
    half.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="is the copy complete"):
        getattr(archives, name)(half, Selection("train", size=6))
