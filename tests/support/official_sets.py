"""Tiny copies of published image sets, laid out file by file as their publishers do."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

Files = dict[str, bytes]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write_folder(files: Files, top: Path) -> Path:
    for name, data in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    return top


def write_tar(files: Files, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "w:gz" if path.suffix in (".gz", ".tgz") else "w"
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(files: Files, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def jpeg(pixels: np.ndarray) -> bytes:
    """(H, W, 3) or (H, W)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def decoded(data: bytes, mode: str = "RGB") -> np.ndarray:
    """(C, H, W) as Pillow reads it."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def photo(seed: int, height: int = 6, width: int = 6, colours: int | None = 3) -> bytes:
    return jpeg(noise(height, width, *([colours] if colours else []), seed=seed))


def bytes_of(x: torch.Tensor) -> np.ndarray:
    """Images in 0..1 as they were stored."""
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    return (x * 255).round().byte().numpy()


def python2_pickle(value: object) -> bytes:
    """Protocol 2 as Python 2 wrote it: text as byte strings, and numpy's arrays with the names of that time."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    kind = b"cnumpy\ndtype\n(" + _opcodes(b"u1") + b"K\x00K\x01tR(K\x03" + _opcodes(b"|") + b"NNN"
    kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + _opcodes(b"b") + b"tR"
    shape = b"(" + b"".join(map(_opcodes, value.shape)) + b"t"
    return empty + b"(K\x01" + shape + kind + b"\x89" + _opcodes(value.tobytes()) + b"tb"


def cifar10_batches(per_batch: int = 4) -> dict[str, tuple[np.ndarray, list[int]]]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        name: (noise(per_batch, 3072, seed=i), [(i + 3 * j) % 10 for j in range(per_batch)])
        for i, name in enumerate(names)
    }


def cifar10_python(batches: dict[str, tuple[np.ndarray, list[int]]]) -> Files:
    """Plus what the publisher adds and nobody needs."""
    files = {
        f"cifar-10-batches-py/{name}": python2_pickle(
            {b"data": x, b"labels": y, b"batch_label": b"a batch", b"filenames": [b"a.png"] * len(y)}
        )
        for name, (x, y) in reversed(batches.items())  # in the published tar they are not in order
    }
    names = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
    files["cifar-10-batches-py/batches.meta"] = python2_pickle({b"label_names": names, b"num_vis": 3072})
    return files | {"cifar-10-batches-py/readme.html": b"<html>"}


def cifar10_binary(batches: dict[str, tuple[np.ndarray, list[int]]]) -> Files:
    return {
        f"cifar-10-batches-bin/{name}.bin": np.column_stack([np.array(y, np.uint8), x]).tobytes()
        for name, (x, y) in batches.items()
    } | {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", side) for side in array.shape)
    return head + array.astype(np.uint8).tobytes()


def mnist_files(prefix: dict[str, str], *, first_label: int = 0, zipped: bool = True) -> Files:
    """`prefix` maps our splits to what their files begin with."""
    files = {}
    for seed, (split, begin) in enumerate(prefix.items()):
        count = 12 if split == "train" else 5
        files[f"{begin}-images-idx3-ubyte"] = idx(noise(count, 28, 28, seed=seed))
        files[f"{begin}-labels-idx1-ubyte"] = idx(first_label + np.arange(count) % 10)
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()} if zipped else files


def tinyimagenet(folder: str = "tiny-imagenet-200/") -> Files:
    """Two classes, listed in an order that is not the alphabet's; one image is grey."""
    files = {"wnids.txt": b"n02\nn01\n", "words.txt": b"n01\tfish\nn02\tdog\nn03\tother\n"}
    for seed, (wnid, i) in enumerate((wnid, i) for wnid in ("n02", "n01") for i in range(3)):
        files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = photo(seed, colours=None if i == 2 else 3)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"n01_0.JPEG\t0\t0\t63\t63\n"
    for i in range(4):
        files[f"val/images/val_{i}.JPEG"] = photo(10 + i)
    files["val/val_annotations.txt"] = b"".join(
        f"val_{i}.JPEG\t{('n02', 'n01')[i % 2]}\t0\t32\t44\t62\n".encode() for i in (3, 0, 1, 2)
    )
    files["test/images/test_0.JPEG"] = photo(20)
    return {folder + name: data for name, data in files.items()}


def cub200(folder: str = "CUB_200_2011/") -> Files:
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]
    images = [f"{name}/{name[4:]}_{i:04}.jpg" for name in names for i in range(2)]
    files = {
        "classes.txt": "".join(f"{i + 1} {name}\n" for i, name in enumerate(names)).encode(),
        "images.txt": "".join(f"{i + 1} {name}\n" for i, name in enumerate(images)).encode(),
        "image_class_labels.txt": "".join(f"{i + 1} {i // 2 + 1}\n" for i in range(6)).encode(),
        "train_test_split.txt": "".join(f"{i + 1} {int(i % 2 == 0)}\n" for i in range(6)).encode(),
        "bounding_boxes.txt": b"1 60.0 27.0 325.0 304.0\n",
    }
    files |= {f"images/{name}": photo(i, 5 + i, 9) for i, name in enumerate(images)}
    return {folder + name: data for name, data in files.items()} | {"attributes.txt": b"1 has_bill_shape\n"}


def caltech256(folder: str = "256_ObjectCategories/", per_class: int = 30) -> Files:
    names = {"001.ak47": "001", "002.american-flag": "002", "257.clutter": "257"}
    files = {
        f"{name}/{number}_{i:04}.jpg": photo(100 * k + i, 4, 4)
        for k, (name, number) in enumerate(names.items())
        for i in range(1, per_class + 1)
    }
    files["002.american-flag/RENAME2"] = b"#!/bin/sh"
    return {folder + name: data for name, data in files.items()}


def indoor67() -> tuple[Files, Files]:
    """The images, and the lists that are published apart."""
    names = [f"{room}/{room[:3]}_{i}.jpg" for room in ("kitchen", "airport_inside") for i in range(4)]
    images = {f"Images/{name}": photo(i, 8, 5) for i, name in enumerate(names)}
    lists = {
        "TrainImages.txt": "\n".join(names[i] for i in (5, 0, 1, 4)).encode(),
        "TestImages.txt": ("\n".join(names[i] for i in (2, 7)) + "\n").encode(),
    }
    return images, lists
