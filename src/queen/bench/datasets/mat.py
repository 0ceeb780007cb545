"""Arrays of numbers in MATLAB 5 files. scipy's reader crashes the process on some damaged files; this one does not."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from queen.bench.datasets.trees import MAX_FILE, DataError

HEADER = 128
MATRIX, COMPRESSED = 14, 15
NUMBERS: Mapping[int, str] = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
NUMBER_CLASSES = range(6, 16)
COMPLEX = 0x800


def read_mat(data: bytes) -> dict[str, NDArray[np.generic]]:
    """The arrays by name; anything else in the file (text, cell arrays, complex numbers) is left out."""
    order = {b"IM": "<", b"MI": ">"}.get(data[HEADER - 2 : HEADER])
    if order is None:
        raise DataError("expected a MATLAB 5 file")
    arrays: dict[str, NDArray[np.generic]] = {}
    for kind, content in _elements(memoryview(data)[HEADER:], order):
        inner = _elements(memoryview(_inflate(content)), order) if kind == COMPRESSED else [(kind, content)]
        for inner_kind, matrix in inner:
            if inner_kind == MATRIX:
                arrays |= _read_matrix(matrix, order)
    return arrays


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """(kind, content) of each element: kind and size take 4 bytes each, or 2 each before 4 bytes of content."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        start, small = at + 8, kind >> 16
        if small:
            kind, size, start = kind & 0xFFFF, small, at + 4
        if start + size > len(data) or small > 4:
            raise DataError("an element is larger than the file")
        yield kind, data[start : start + size]
        padded = size if kind == COMPRESSED else -(-size // 8) * 8
        at += 8 if small else 8 + padded


def _inflate(content: memoryview) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(content, MAX_FILE)
    if not stream.eof:
        raise DataError("a compressed element ends too early, or is too large")
    return data


def _read_matrix(content: memoryview, order: str) -> dict[str, NDArray[np.generic]]:
    """{name: array} if the matrix holds real numbers, else {}."""
    parts = list(_elements(content, order))
    if len(parts) < 3:
        raise DataError("a matrix has no name or shape")
    (_, flags), (_, shape), (_, name) = parts[:3]
    (flag,) = struct.unpack_from(f"{order}I", flags)
    if len(parts) != 4 or flag & 0xFF not in NUMBER_CLASSES or flag & COMPLEX:
        return {}
    kind, values = parts[3]
    if kind not in NUMBERS:
        raise DataError(f"an array has numbers of the unknown kind {kind}")
    array = np.frombuffer(values, f"{order}{NUMBERS[kind]}")
    return {bytes(name).decode(): array.reshape(np.frombuffer(shape, f"{order}i4").tolist(), order="F")}
