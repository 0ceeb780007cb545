from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from queen.bench.datasets import DataError, archives, load_set, npy_cache, packs
from queen.errors import OptionError
from tests.support import official_sets as official
from tests.support.official_sets import noise, write_tar


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
