from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from queen.bench.datasets import archives
from queen.bench.datasets.pixels import Pixels, Selection
from queen.bench.datasets.trees import DataError
from queen.errors import OptionError, QueenError
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
    if form == "zip":
        path = write_zip(files, tmp_path / "tiny-imagenet-200.zip")
    else:
        path = write_folder(files, tmp_path) / "tiny-imagenet-200"
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
    if form == "tgz":
        path = write_tar(files, tmp_path / "CUB_200_2011.tgz")
    else:
        path = write_folder(files, tmp_path) / "CUB_200_2011"
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
    if form == "tar":
        path = write_tar(dict(reversed(files.items())), tmp_path / "256_ObjectCategories.tar")
    else:
        path = write_folder(files, tmp_path) / "256_ObjectCategories"
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
    if form == "tar":
        path = write_tar(images, tmp_path / "indoorCVPR_09.tar")
    else:
        path = write_folder(images, tmp_path) / "Images"
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


# What can be wrong with them.


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
