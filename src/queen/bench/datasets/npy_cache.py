"""A cache of decoded images as .npy files, which many processes can map into memory instead of decoding them again."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np

from queen.bench.datasets.pixels import Pixels
from queen.bench.datasets.trees import DataError, reading
from queen.errors import OptionError

FILES = ("x.npy", "y.npy", "classes.json")


def load_cached(folder: Path | None, key: dict[str, object], make: Callable[[], Pixels]) -> Pixels:
    """The images that the folder has for this key, mapped into memory; made and stored first if it has none.

    Without a folder they are only made.
    """
    if folder is None:
        return make()
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    entry = folder / f"{key['name']}-{key['split']}-{digest}"
    if not entry.is_dir():
        pixels = make()
        try:
            _store(pixels, entry)
        except OSError as error:
            raise OptionError(f"cannot keep decoded images in '{folder}': {error.strerror or error}") from error
        del pixels  # in favour of the mapped file, whose pages are shared with other processes
    try:
        with reading(entry.name):
            x, y = (np.load(entry / name, mmap_mode="r", allow_pickle=False) for name in FILES[:2])
            return Pixels(x, np.array(y), tuple(json.loads((entry / FILES[2]).read_text())))
    except DataError as error:
        raise DataError(f"{error} Delete '{entry}' to have it made again") from error


def _store(pixels: Pixels, entry: Path) -> None:
    """Write into a temporary folder, then rename it: another process sees all files or none."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        np.save(temporary / FILES[0], np.ascontiguousarray(pixels.x))
        np.save(temporary / FILES[1], pixels.y)
        (temporary / FILES[2]).write_text(json.dumps(pixels.classes))
        temporary.chmod(0o755)
        os.rename(temporary, entry)
    except OSError:
        if not entry.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
