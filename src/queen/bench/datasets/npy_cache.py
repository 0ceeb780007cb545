"""Decoded images kept as .npy, so that many processes can map the same file instead of decoding it again."""

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


def kept(folder: Path | None, key: dict[str, object], make: Callable[[], Pixels]) -> Pixels:
    """What was kept under the key, mapped into memory; else what `make` returns, which is kept then."""
    if folder is None:
        return make()
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    entry = folder / f"{key['name']}-{key['split']}-{digest}"
    if not entry.is_dir():
        pixels = make()
        try:
            _keep(pixels, entry)
        except OSError as error:
            raise OptionError(f"cannot keep decoded images in '{folder}': {error.strerror or error}") from error
        del pixels  # mapped pages are shared with the other processes
    try:
        with reading(entry.name):
            x, y = (np.load(entry / name, mmap_mode="r", allow_pickle=False) for name in FILES[:2])
            return Pixels(x, np.array(y), tuple(json.loads((entry / FILES[2]).read_text())))
    except DataError as error:
        raise DataError(f"{error} Delete '{entry}' to have it made again") from error


def _keep(pixels: Pixels, entry: Path) -> None:
    """Write beside, then rename: another process sees all of it or nothing."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        np.save(beside / FILES[0], np.ascontiguousarray(pixels.x))
        np.save(beside / FILES[1], pixels.y)
        (beside / FILES[2]).write_text(json.dumps(pixels.classes))
        beside.chmod(0o755)
        os.rename(beside, entry)
    except OSError:
        if not entry.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
