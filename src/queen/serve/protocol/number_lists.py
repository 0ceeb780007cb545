"""Reads the numbers of a large request piece by piece, so that other threads have their turn in between.

A JSON parser works on all of a text at once, and while it does nobody else can run Python: that would be milliseconds
in which all other clients wait. So the lists of numbers are cut out of a large text first, and parsed in pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import orjson
import torch
from torch import Tensor

from queen.serve.protocol.pause import pause
from queen.serve.protocol.tensors import read_list
from queen.serve.types import ServeError, TensorSpec

PIECE = 1 << 14  # bytes of a list that are parsed at once
KEY = b'"data"'
COLON, BLANKS = re.compile(rb"[ \t\r\n]*:?[ \t\r\n]*"), re.compile(rb"[ \t\r\n]*")
BRACKETS_AS_BLANKS = bytes.maketrans(b"[]", b"  ")
NUMBER_BYTES = b"0123456789.eE+- \t\r\n"


def cut_lists(text: bytes | bytearray) -> tuple[bytes, dict[str, bytes]]:
    """The JSON with a mark in place of each list that is the value of a key "data", and these lists by mark.

    Nothing is cut out where strings may have escapes, nor where the text is not JSON: that is for the parser to say.
    """
    if b"\\" in text:
        return bytes(text), {}
    rest, lists, position = list[bytes](), dict[str, bytes](), 0
    while (key := text.find(KEY, position)) >= 0:
        start = _skip(COLON, text, key + len(KEY))
        end = _end_of_list(text, start) if text[start : start + 1] == b"[" else -1
        if end < 0:
            rest.append(bytes(text[position : key + len(KEY)]))
            position = key + len(KEY)
            continue
        mark = f"\0{len(lists)}"  # as a client could write it with a backslash alone
        rest += (bytes(text[position:start]), orjson.dumps(mark))
        lists[mark] = bytes(text[start:end])
        position = end
    return b"".join((*rest, text[position:])), lists


def read_pieces(tensor: TensorSpec, datatype: object, shape: tuple[int, ...], text: bytes) -> Tensor:
    """A tensor from the text of a list of numbers, flat or nested like its shape."""
    count, is_nested = math.prod(shape), text.startswith(b"[", _skip(BLANKS, text, 1))
    if count > len(text):
        raise ServeError(400, f"input '{tensor.name}': expected {count} numbers for shape {list(shape)}, got fewer")
    form = _Form(shape) if is_nested else None
    parts, got = list[Tensor](), 0
    for piece in _pieces(text if is_nested else text[1:-1]):
        if form is not None and not form.fits(piece):
            raise _wrong(tensor, shape)
        try:
            numbers = orjson.loads(b"[%b]" % (piece.translate(BRACKETS_AS_BLANKS) if is_nested else piece))
        except orjson.JSONDecodeError:
            raise _wrong(tensor, shape) from None
        if not numbers:  # there was a comma too many
            raise _wrong(tensor, shape)
        got += len(numbers)
        parts.append(read_list(tensor, datatype, (len(numbers),), numbers))
        pause()
    if got != count or (form is not None and not form.is_complete):
        raise ServeError(400, f"input '{tensor.name}': expected {count} numbers for shape {list(shape)}, got {got}")
    return torch.cat(parts).reshape(shape)


class _Form:
    """The brackets and commas that a list of numbers has if it is nested like a shape, compared piece by piece."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._expected = b""
        for size in reversed(shape):
            self._expected = b"[%b]" % b",".join([self._expected] * size)
        self._position = 0

    def fits(self, piece: bytes) -> bool:
        """Whether the next piece, up to a comma, has them as they should be."""
        own = piece.translate(None, NUMBER_BYTES) + b","
        start, self._position = self._position, self._position + len(own)
        return own == self._expected[start : self._position] + b"," * (self._position > len(self._expected))

    @property
    def is_complete(self) -> bool:
        """Whether all pieces came, the last one without a comma behind it."""
        return self._position == len(self._expected) + 1


def _pieces(text: bytes) -> Iterator[bytes]:
    """The text cut at commas, which are left out."""
    start = 0
    while len(text) - start > PIECE:
        end = text.rfind(b",", start, start + PIECE)
        if end < 0 and (end := text.find(b",", start)) < 0:
            break
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _skip(what: re.Pattern[bytes], text: bytes | bytearray, start: int) -> int:
    match = what.match(text, start)
    return start if match is None else match.end()


def _end_of_list(text: bytes | bytearray, start: int) -> int:
    """Where a list ends in which there are only numbers and lists; -1 if it does not."""
    quote = text.find(b'"', start)
    limit = len(text) if quote < 0 else quote
    brace = text.find(b"}", start, limit)
    return text.rfind(b"]", start, limit if brace < 0 else brace) + 1 or -1


def _wrong(tensor: TensorSpec, shape: Sequence[int]) -> ServeError:
    return ServeError(
        400, f"input '{tensor.name}': expected data of numbers, flat or nested exactly like shape {list(shape)}"
    )
