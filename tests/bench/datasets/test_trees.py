from __future__ import annotations

import io
import os
import tarfile

import pytest

from queen.bench.datasets import trees
from queen.bench.datasets.trees import DataError, open_tree, reading
from queen.errors import OptionError
from tests.support.official_sets import noise, write_folder, write_tar, write_zip

FILES = {"top/b.txt": b"two\n\n three \n", "top/a/deep/x.bin": b"\0\1", "other/top/y": b"", "./top/c": b"c"}
WRITE = {
    "folder": write_folder,
    "zip": lambda files, path: write_zip(files, path.with_suffix(".zip")),
    "tar": lambda files, path: write_tar(files, path.with_suffix(".tar")),
    "tgz": lambda files, path: write_tar(files, path.with_suffix(".tgz")),
}


@pytest.mark.parametrize("kind", WRITE)
def test_every_kind_of_tree_reads_alike(kind, tmp_path):
    tree = open_tree(WRITE[kind](FILES, tmp_path / "it"))
    assert tree.names == ("other/top/y", "top/a/deep/x.bin", "top/b.txt", "top/c")
    assert dict(tree.read(tree.names)) == {name.removeprefix("./"): data for name, data in FILES.items()}
    assert tree.read_lines("top/b.txt") == ["two", " three "]
    inside = tree.inside("top")
    assert inside.names == ("a/deep/x.bin", "b.txt", "c")
    assert dict(inside.read(["c", "a/deep/x.bin"])) == {"c": b"c", "a/deep/x.bin": b"\0\1"}
    assert inside.inside("a").inside("deep").read_one("x.bin") == b"\0\1"
    assert inside.inside("nothing") is inside
    with pytest.raises(DataError, match="has no file 'y'"):
        list(inside.read(["c", "y"]))


def test_a_shallow_tree_sees_only_what_lies_in_the_folder_itself(tmp_path):
    write_folder(FILES | {"z": b"z"}, tmp_path)
    assert open_tree(tmp_path, deep=False).names == ("z",)


EVIL = {"/etc/passwd": b"1", "../up": b"2", "a/../../up": b"3", "a/.hidden": b"4", "__MACOSX/a": b"5", "good": b"6"}


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz"])
def test_names_that_lead_outside_are_left_out(kind, tmp_path):
    tree = open_tree(WRITE[kind](EVIL, tmp_path / "it"))
    assert tree.names == ("good",)
    for name in EVIL.keys() - {"good"}:
        with pytest.raises(DataError):
            tree.read_one(name)
    assert [path.name for path in tmp_path.iterdir()] == [tree.path.name]  # nothing was unpacked


def test_links_and_devices_in_a_tar_are_left_out(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    path = tmp_path / "it.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (
            ("s", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("f", tarfile.FIFOTYPE),
            ("d", tarfile.DIRTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret")
            archive.addfile(member)
        for data in (b"first", b"second"):
            member = tarfile.TarInfo("good")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    tree = open_tree(path)
    assert tree.names == ("good",)
    assert list(tree.read(["good"])) == [("good", b"first")]


def test_folders_behind_links_are_not_followed(tmp_path):
    write_folder({"in/x": b"x", "out/y": b"y"}, tmp_path)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    os.symlink(tmp_path / "in", tmp_path / "in" / "loop")
    assert open_tree(tmp_path / "in").names == ("x",)
    (tmp_path / "root").symlink_to(tmp_path / "in")  # but the user may link the folder itself
    assert open_tree(tmp_path / "root").read_one("x") == b"x"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_file_of_absurd_size_is_refused(kind, tmp_path, monkeypatch):
    tree = open_tree(WRITE[kind]({"small": b"12", "large": b"123"}, tmp_path / "it"))
    monkeypatch.setattr(trees, "MAX_FILE", 2)
    assert tree.read_one("small") == b"12"
    with pytest.raises(DataError, match="'large' says it has 3 bytes"):
        tree.read_one("large")


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\3\4", b"\x1f\x8b"], ids=["empty", "text", "zip", "gzip"])
def test_something_else_is_no_archive(data, tmp_path):
    (tmp_path / "it.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"cannot read 'it.zip': .*; is the copy complete\?"):
        open_tree(tmp_path / "it.zip")


def test_a_changed_byte_in_a_compressed_archive_is_noticed(tmp_path):
    files = {f"{i}": noise(3000, seed=i).tobytes() for i in range(4)}
    for path in (write_tar(files, tmp_path / "it.tgz"), write_zip(files, tmp_path / "it.zip")):
        data = path.read_bytes()
        assert dict(open_tree(path).read(files)) == files
        place = len(data) // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataError, match=r"cannot read 'it.(tgz|zip)'"):
            list(open_tree(path).read(files))


def test_only_foreign_errors_are_translated():
    with pytest.raises(OptionError, match=r"^mine$"), reading("file"):
        raise OptionError("mine")
    with pytest.raises(DataError, match="cannot read 'file': the file ends too early"), reading("file"):
        raise EOFError
    with pytest.raises(KeyboardInterrupt), reading("file"):
        raise KeyboardInterrupt
