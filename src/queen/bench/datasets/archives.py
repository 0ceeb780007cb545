"""Readers of the official archives and folders of image sets: (path, wanted) -> Pixels.

`path` is the archive or folder, or one file of several beside each other; the wanted split is "train" or "test".
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from queen.bench.datasets.mat import read_mat
from queen.bench.datasets.pickles import read_pickle
from queen.bench.datasets.pixels import SUFFIXES, Pixels, Selection, decode, rows_in_split
from queen.bench.datasets.trees import MAX_FILE, DataError, Tree, open_tree, reading

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple(str(digit) for digit in range(10))
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


def cifar10(path: Path, wanted: Selection) -> Pixels:
    """CIFAR-10, the Python version (pickled batches) or the binary one."""
    batches = [f"data_batch_{i}" for i in range(1, 6)] if wanted.split == "train" else ["test_batch"]
    tree = open_tree(path).inside("cifar-10-batches-py").inside("cifar-10-batches-bin")
    if "test_batch.bin" in tree.names or "data_batch_1.bin" in tree.names:
        return _read_records(tree, [f"{batch}.bin" for batch in batches], 1, CIFAR10)
    return _read_pickled(tree, batches, b"labels", CIFAR10)


def cifar100(path: Path, wanted: Selection) -> Pixels:
    """CIFAR-100 with its fine labels, the Python version or the binary one."""
    tree = open_tree(path).inside("cifar-100-python").inside("cifar-100-binary")
    if "fine_label_names.txt" in tree.names:
        return _read_records(tree, [f"{wanted.split}.bin"], 2, tuple(tree.read_lines("fine_label_names.txt")))
    names = read_pickle(tree.read_one("meta"), "meta").get(b"fine_label_names")
    with reading("meta"):
        classes = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names or ())
    return _read_pickled(tree, [wanted.split], b"fine_labels", classes)


def _read_pickled(tree: Tree, names: list[str], key: bytes, classes: tuple[str, ...]) -> Pixels:
    batches = [read_pickle(data, name) for name, data in sorted(tree.read(names))]
    with reading(tree.path.name):
        x = np.concatenate([batch[b"data"].reshape(-1, 3, 32, 32) for batch in batches])
        return Pixels(x, np.concatenate([np.array(batch[key], np.int64) for batch in batches]), classes)


def _read_records(tree: Tree, names: list[str], labels: int, classes: tuple[str, ...]) -> Pixels:
    """Records of `labels` bytes, the last of which is the label, and 3 x 32 x 32 bytes of the image."""
    data = b"".join(data for _, data in sorted(tree.read(names)))
    with reading(tree.path.name):
        records = np.frombuffer(data, np.uint8).reshape(-1, labels + 3072)
    return Pixels(records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1].astype(np.int64), classes)


def svhn(path: Path, wanted: Selection) -> Pixels:
    """SVHN's cropped digits: {train,test}_32x32.mat in the folder of `path`."""
    name = f"{wanted.split}_32x32.mat"
    data = open_tree(path.parent, deep=False).read_one(name)
    with reading(name):
        content = read_mat(data)
        if not {"X", "y"} <= content.keys():
            raise DataError(f"expected arrays X and y in '{name}', got {', '.join(content) or 'none'}")
        x, y = content["X"].astype(np.uint8, casting="safe"), content["y"].astype(np.int64).ravel()
        return Pixels(x.transpose(3, 2, 0, 1), y % 10, DIGITS)  # the digit 0 has label 10


def mnist(path: Path, wanted: Selection) -> Pixels:
    """MNIST's idx files, gzipped or not, in the folder of `path`."""
    stem = "train" if wanted.split == "train" else "t10k"
    return Pixels(*_read_idx_pair(open_tree(path.parent, deep=False), stem), DIGITS)


def emnist(path: Path, wanted: Selection) -> Pixels:
    """EMNIST letters (26 classes, capital or not): the published zip, or idx files in the folder of `path`."""
    zipped = path.suffix == ".zip"
    tree = open_tree(path).inside("gzip") if zipped else open_tree(path.parent, deep=False)
    x, y = _read_idx_pair(tree, f"emnist-letters-{wanted.split}")
    return Pixels(x.swapaxes(2, 3), y - 1, LETTERS)  # stored column by column, labels from 1


def _read_idx_pair(tree: Tree, stem: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    arrays = []
    for kind, dims in (("images-idx3", 3), ("labels-idx1", 1)):
        name = f"{stem}-{kind}-ubyte"
        name = name if name in tree.names else f"{name}.gz"
        data = tree.read_one(name)
        with reading(name):
            arrays.append(_parse_idx(data, dims))
    return arrays[0][:, None], arrays[1].astype(np.int64)


def _parse_idx(data: bytes, dims: int) -> NDArray[np.uint8]:
    """An array of bytes, stored as two zeros, 8 for bytes, the number of dimensions, each in 4 bytes, the content."""
    if data.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            data = file.read(MAX_FILE)
    if data[:4] != bytes([0, 0, 8, dims]):
        raise DataError(
            f"expected an idx file of bytes in {dims} dimensions, got one that begins with {data[:4].hex()}"
        )
    shape = np.frombuffer(data, ">u4", dims, 4).astype(np.int64)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def tinyimagenet(path: Path, wanted: Selection) -> Pixels:
    """TinyImageNet-200; its validation images are the test split, since the official test images have no labels."""
    tree = open_tree(path).inside("tiny-imagenet-200")
    classes = tuple(sorted(name.strip() for name in tree.read_lines("wnids.txt")))
    if wanted.split == "train":
        parts = [name.split("/") for name in tree.names]
        pairs = [("/".join(p), p[1]) for p in parts if p[0] == "train" and p[-1].endswith(".JPEG")]
    else:
        pairs = [(f"val/images/{w[0]}", w[1]) for w in _read_words(tree, "val/val_annotations.txt", 2)]
    return decode(tree, _label_files(pairs, classes), classes, wanted)


def cub200(path: Path, wanted: Selection) -> Pixels:
    """CUB-200-2011 with its official split."""
    tree = open_tree(path).inside("CUB_200_2011")
    tables = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
    files, labels, train, names = (dict(w[:2] for w in _read_words(tree, table, 2)) for table in tables)
    names = {number: name.partition(".")[2] or name for number, name in names.items()}  # 001.Black_footed_Albatross
    with reading("images.txt"):
        rows = [i for i in files if train[i] == ("1" if wanted.split == "train" else "0")]
        pairs = [(f"images/{files[i]}", names[labels[i]]) for i in rows]
    classes = tuple(names.values())
    return decode(tree, _label_files(pairs, classes), classes, wanted)


def caltech256(path: Path, wanted: Selection) -> Pixels:
    """Caltech-256 without its clutter; 25 images of each class, always the same, are the test split."""
    return _read_caltech(path, wanted, "256_ObjectCategories", "257.clutter")


def caltech101(path: Path, wanted: Selection) -> Pixels:
    """Caltech-101 without its background images; the test split is drawn like that of Caltech-256."""
    return _read_caltech(path, wanted, "101_ObjectCategories", "BACKGROUND_Google")


def _read_caltech(path: Path, wanted: Selection, folder: str, unwanted: str) -> Pixels:
    tree = open_tree(path).inside(folder)
    classes, listed = _list_by_folder(name for name in tree.names if not name.startswith(f"{unwanted}/"))
    rows = rows_in_split(np.array([label for _, label in listed], np.int64), wanted.split, per_class=25)
    return decode(tree, [listed[row] for row in rows], classes, wanted)


def indoor67(path: Path, wanted: Selection) -> Pixels:
    """MIT Indoor-67; the lists of the official split lie beside the images' folder or archive."""
    tree = open_tree(path).inside("Images")
    beside = open_tree(path.parent, deep=False)
    lists = {split: beside.read_lines(f"{split}Images.txt") for split in ("Train", "Test")}
    classes = tuple(sorted({line.split("/")[0].strip() for lines in lists.values() for line in lines}))
    pairs = [(line.strip(), line.split("/")[0].strip()) for line in lists[wanted.split.title()]]
    return decode(tree, _label_files(pairs, classes), classes, wanted)


def class_folders(path: Path, wanted: Selection) -> Pixels:
    """Folders train/CLASS/IMAGE and val/CLASS/IMAGE (or test/), as ImageNet has them, beside `path`."""
    names = ("train",) if wanted.split == "train" else ("val", "test")
    folder = next((path.parent / name for name in names if (path.parent / name).is_dir()), None)
    if folder is None:
        raise DataError(f"expected a folder '{names[0]}' with a folder for each class in '{path.parent}'")
    tree = open_tree(folder)
    classes, listed = _list_by_folder(tree.names)
    return decode(tree, listed, classes, wanted)


def _list_by_folder(names: Iterable[str]) -> tuple[tuple[str, ...], list[tuple[str, int]]]:
    """Classes, named by the first folder of each image and sorted as torchvision does, and (name, label) pairs."""
    pairs = [(name, name.split("/")[0]) for name in names if "/" in name and name.lower().endswith(SUFFIXES)]
    classes = tuple(sorted({folder for _, folder in pairs}))
    return classes, _label_files(pairs, classes)


def _label_files(pairs: Iterable[tuple[str, str]], classes: tuple[str, ...]) -> list[tuple[str, int]]:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = next((cls for _, cls in pairs if cls not in numbers), None)
    if unknown is not None:
        raise DataError(f"there is an image of class '{unknown}', which is not in the list of classes")
    return [(name, numbers[cls]) for name, cls in pairs]


def _read_words(tree: Tree, name: str, count: int) -> list[list[str]]:
    """The words of every line of a text file, of which there must be at least `count`."""
    lines = [line.split() for line in tree.read_lines(name)]
    if any(len(line) < count for line in lines):
        raise DataError(f"expected lines of at least {count} words in '{name}'")
    return lines
