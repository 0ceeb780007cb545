"""Inflates compressed request bodies, up to a limit."""

from __future__ import annotations

import zlib

from queen.serve.types import ServeError

PIECE = 1 << 16  # bytes inflated at a time
MAX_MEMBERS = 1024  # parts of a gzip body: empty ones would cost time and give nothing
GZIP, ZLIB, RAW = 31, 15, -15  # zlib's numbers of the formats


def inflate(body: bytes | bytearray, encoding: str, limit: int) -> bytes | bytearray:
    """The body as it was before the client's `Content-Encoding`, at most `limit` bytes."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise ServeError(415, f"expected Content-Encoding gzip or deflate, got '{encoding[:50]}'")
    form = GZIP if name != "deflate" else ZLIB if _has_zlib_head(body) else RAW
    try:
        return _inflate(memoryview(body), form, limit)
    except zlib.error as error:
        raise ServeError(400, f"the body is not {name}: {error}") from None


def inflate_little(body: bytes, encoding: str, limit: int) -> bytes | None:
    """A small body as it was before, or None if it has more than `limit` bytes, packed or not."""
    if len(body) > limit:
        return None
    try:
        return bytes(inflate(body, encoding, limit))
    except ServeError as error:
        if error.status == 413:
            return None
        raise


def _inflate(body: memoryview, form: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = position = members = 0
    while members == 0 or (form == GZIP and position < len(body) and members < MAX_MEMBERS):
        member = zlib.decompressobj(form)
        members += 1
        while not member.eof:
            taken = body[position : position + PIECE]
            if not taken:
                raise ServeError(400, "the compressed body ends too early")
            pieces.append(member.decompress(taken, limit - size + 1))
            size += len(pieces[-1])
            if size > limit:
                raise ServeError(413, f"the body has more than {limit} bytes after inflating")
            position += len(taken) - len(member.unused_data)
    if position != len(body):
        raise ServeError(400, "there are bytes after the end of the compressed body")
    return b"".join(pieces)


def _has_zlib_head(body: bytes | bytearray) -> bool:
    """Whether the body begins with zlib's header, as `deflate` demands; many clients send the bare stream instead."""
    return len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
