"""Write files that appear whole or not at all, even if the process is killed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from queen.errors import OptionError


def make_folder(folder: Path) -> Path:
    """The folder, made with its parents if it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot make the folder '{folder}': {error.strerror}") from error
    return folder


def write_atomically(path: Path, content: bytes | str, *, private: bool = False, overwrite: bool = True) -> None:
    """Write a file under another name, sync it, then rename it: a reader sees the old file or the new one.

    `private`: only the owner may read it, from the first byte on. Not `overwrite`: `FileExistsError` where a file of
    this name exists. Missing folders are made. The folder is synced too, so that the new file survives a power cut
    (where the file system can do that; it must for private files: a revoked key stays revoked).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # fails where the file exists, unlike a rename
        _sync_folder(path.parent, required=private)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path, *, required: bool) -> None:
    """Make the new name durable; some file systems cannot, which only those who must rely on it are told."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        if required:
            raise
