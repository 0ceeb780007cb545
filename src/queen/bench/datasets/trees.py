"""The files of a folder, a zip or a tar, read in place: nothing is unpacked, and no path in an archive is trusted."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from queen.errors import QueenError

MAX_FILE = 2**30  # the largest file of any set here has 185 MB; more is a decompression bomb

Read = Callable[[Collection[str]], Iterator[tuple[str, bytes]]]


class DataError(QueenError):
    """The files of a data set are damaged, or are not what their names say."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn any error that a damaged file makes its decoder raise into one DataError that names the file."""
    try:
        yield
    except QueenError:
        raise
    except Exception as error:  # decoders raise anything, also SyntaxError and struct.error
        why = " ".join(str(error).split())[:200] or "the file ends too early"
        raise DataError(f"cannot read '{name}': {why}; is the copy complete?") from error


@dataclass(frozen=True)
class Tree:
    """The regular files under `path`, by their names relative to it, sorted.

    Files are read in the archive's own order, since going back in a compressed tar means starting again. Hidden files,
    links and names that lead outside are left out.
    """

    path: Path
    names: tuple[str, ...]
    fetch: Read

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (name, bytes) of every wanted file once."""
        missing = set(wanted)
        absent = missing.difference(self.names)
        if absent:
            raise DataError(f"'{self.path.name}' has no file '{min(absent)}'; is the copy complete?")
        with reading(self.path.name):
            for name, data in self.fetch(wanted):
                if name in missing:  # a tar may hold a name twice
                    missing.remove(name)
                    yield name, data

    def read_one(self, name: str) -> bytes:
        """The bytes of one file."""
        return dict(self.read([name]))[name]

    def read_lines(self, name: str) -> list[str]:
        """The lines of a text file, without empty ones."""
        with reading(name):
            return [line for line in self.read_one(name).decode().splitlines() if line.strip()]

    def inside(self, folder: str) -> Tree:
        """The tree below the highest folder of this name; the tree itself if there is none."""
        starts = {name: f"/{name}".find(f"/{folder}/") for name in self.names}
        prefixes = [name[: start + len(folder) + 1] for name, start in starts.items() if start >= 0]
        if not prefixes:
            return self
        prefix = min(prefixes, key=lambda name: (name.count("/"), name))
        return self._cut(prefix)

    def _cut(self, prefix: str) -> Tree:
        def fetch(wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
            for name, data in self.fetch({prefix + name for name in wanted}):
                yield name.removeprefix(prefix), data

        names = tuple(name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
        return Tree(self.path, names, fetch)


def open_tree(path: Path, *, deep: bool = True) -> Tree:
    """The files of a folder (only those directly in it unless `deep`), of a zip or of a tar."""
    with reading(path.name):
        if path.is_dir():
            return _folder(path, deep)
        return _zip(path) if zipfile.is_zipfile(path) else _tar(path)


def _folder(path: Path, deep: bool) -> Tree:
    names: list[str] = []
    for above, folders, files in os.walk(path):
        names += [(Path(above) / file).relative_to(path).as_posix() for file in files]
        if not deep:
            folders.clear()

    def fetch(wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        for name in sorted(wanted):
            yield name, (path / name).read_bytes()

    return Tree(path, _safe_names(names), fetch)


def _zip(path: Path) -> Tree:
    with zipfile.ZipFile(path) as archive:
        names = _safe_names(info.filename for info in archive.infolist() if not info.is_dir())

    def fetch(wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = _safe_name(info.filename)
                if name in wanted:
                    _check_size(info.file_size, name)
                    yield name, archive.read(info)

    return Tree(path, names, fetch)


def _tar(path: Path) -> Tree:
    with tarfile.open(path) as archive:
        names = _safe_names(member.name for member in archive if member.isfile())
        while archive.fileobj is not None and archive.fileobj.read(2**20):
            pass  # only the checksum at the end of a compressed file says whether all before it is intact

    def fetch(wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        with tarfile.open(path) as archive:
            for member in archive:
                name = _safe_name(member.name)
                opened = archive.extractfile(member) if name in wanted and member.isfile() else None
                if opened is not None:
                    _check_size(member.size, name)
                    yield name, opened.read()

    return Tree(path, names, fetch)


def _check_size(size: int, name: str) -> None:
    if size > MAX_FILE:
        raise DataError(f"'{name}' says it has {size} bytes, more than any file of a data set here ({MAX_FILE})")


def _safe_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({plain for name in names if (plain := _safe_name(name))}))


def _safe_name(name: str) -> str:
    """The name without './'; empty for hidden files and for names that lead outside."""
    parts = PurePosixPath(name).parts
    unwanted = any(part.startswith((".", "/", "__MACOSX")) for part in parts)
    return "" if unwanted else "/".join(parts)
