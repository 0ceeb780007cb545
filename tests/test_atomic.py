"""Files appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from queen import atomic
from queen.atomic import make_folder, write_atomically
from queen.errors import OptionError


def fail(*_: object) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_older_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "a" / "b.txt"
    for older in (None, "older"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, step, fail)
            with pytest.raises(OSError, match="disk full"):
                write_atomically(path, "newer")
        assert os.listdir(path.parent) == ([] if older is None else ["b.txt"])
        write_atomically(path, "older")
    assert path.read_text() == "older"


def test_nobody_sees_half_a_file(tmp_path, monkeypatch):
    path, replace = tmp_path / "b.txt", os.replace
    write_atomically(path, b"older")

    def look(temporary: Path, target: Path) -> None:
        assert (Path(temporary).read_bytes(), path.read_bytes()) == (b"newer", b"older")
        assert Path(temporary).parent == tmp_path  # or the rename would be no rename
        replace(temporary, target)

    monkeypatch.setattr(atomic.os, "replace", look)
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_file_and_folder_are_synced_in_this_order(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(atomic.os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    write_atomically(tmp_path / "b.txt", "all")
    assert synced == [False, True]


def test_a_private_file_is_its_owners_from_the_first_byte(tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(atomic.os, "fsync", lambda handle: modes.append(os.fstat(handle).st_mode & 0o777))
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "private", "x", private=True)
        write_atomically(tmp_path / "public", "x")
    finally:
        os.umask(before)
    assert modes[0::2] == [0o600, 0o666]
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_without_overwriting_the_first_file_stays(tmp_path):
    write_atomically(tmp_path / "b.txt", "first", overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "b.txt", "second", overwrite=False)
    assert (tmp_path / "b.txt").read_text() == "first"
    assert os.listdir(tmp_path) == ["b.txt"]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(OptionError, match=f"cannot make the folder '{path}'"):
            make_folder(path)
    assert make_folder(tmp_path / "a" / "b").is_dir()


def test_a_folder_that_cannot_be_synced_matters_to_private_files_alone(tmp_path, monkeypatch):
    real = os.open

    def refuse_folders(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *mode)

    monkeypatch.setattr(atomic.os, "open", refuse_folders)
    write_atomically(tmp_path / "public", "all")
    assert (tmp_path / "public").read_text() == "all"
    with pytest.raises(OSError, match="Invalid argument"):
        write_atomically(tmp_path / "private", "all", private=True)
