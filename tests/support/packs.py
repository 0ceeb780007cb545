"""Packs of small images, written as `queen.bench.datasets.packs` reads them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def encoded(pixels: np.ndarray, kind: str = "WEBP", **options: object) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def mosaics(x: np.ndarray, columns: int, rows: int, **options: object) -> list[np.ndarray]:
    """Images (n, side, side[, 3]) tile by tile, the last mosaic filled up with black."""
    side, per_mosaic, made = x.shape[1], columns * rows, []
    for start in range(0, len(x), per_mosaic):
        sheet = np.zeros((rows * side, columns * side, *x.shape[3:]), np.uint8)
        for i, tile in enumerate(x[start : start + per_mosaic]):
            top, left = i // columns * side, i % columns * side
            sheet[top : top + side, left : left + side] = tile
        made.append(encoded(sheet, **options))
    return made


def write_pack(path: Path, columns: int = 3, rows: int = 2, options: dict | None = None, **arrays: np.ndarray) -> Path:
    """Arrays with 3 or 4 dimensions are splits, others are stored as they are."""
    options = {"kind": "WEBP", "lossless": True} if options is None else options
    content: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim < 3:
            content[name] = array
            continue
        content |= {f"{name}/{i:03}": m for i, m in enumerate(mosaics(array, columns, rows, **options))}
        content[f"{name}/n"] = np.array(len(array))
        content.setdefault("tile", np.array([array.shape[1], columns]))
    np.savez(path, **content)
    return path
