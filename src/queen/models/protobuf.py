"""The format of protobuf messages, as far as ONNX files need it: fields are read and written, by number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

NUMBER, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # kinds of fields


@dataclass(frozen=True)
class Field:
    """One field of a message: its number, its value (floats, texts and messages as their bytes), and all its bytes."""

    number: int
    value: int | memoryview
    raw: memoryview

    @property
    def whole(self) -> int:
        """The value, which must be a whole number with a sign."""
        if not isinstance(self.value, int):
            raise ValueError("expected a number, got bytes")
        return self.value - (1 << 64) if self.value >> 63 else self.value

    @property
    def data(self) -> memoryview:
        """The value, which must be bytes."""
        if isinstance(self.value, int):
            raise ValueError("expected bytes, got a number")
        return self.value

    @property
    def text(self) -> str:
        """The value, which must be a text."""
        return bytes(self.data).decode()


def read_fields(message: bytes | memoryview) -> Iterator[Field]:
    """The fields of a message in their order; `ValueError` where it is none."""
    data, start = memoryview(message), 0
    while start < len(data):
        key, at = _read_number(data, start)
        kind, value = key & 7, 0
        if kind == NUMBER:
            value, end = _read_number(data, at)
            yield Field(key >> 3, value, data[start:end])
        else:
            if kind == BYTES:
                size, at = _read_number(data, at)
            elif kind in (EIGHT_BYTES, FOUR_BYTES):
                size = 8 if kind == EIGHT_BYTES else 4
            else:
                raise ValueError(f"no field is of kind {kind}")
            end = at + size
            if end > len(data):
                raise ValueError("it ends too early")
            yield Field(key >> 3, data[at:end], data[start:end])
        start = end


def write_field(number: int, value: int | bytes | memoryview) -> bytes:
    """One field: a whole number that is not negative, or bytes."""
    if isinstance(value, int):
        return _write_number(number << 3 | NUMBER) + _write_number(value)
    return b"".join((_write_number(number << 3 | BYTES), _write_number(len(value)), value))


def _read_number(data: memoryview, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, the lowest first; and where it ends."""
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number & (1 << 64) - 1, at
    raise ValueError("it ends too early")


def _write_number(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
