"""Compressed bodies: read exactly, and never larger than allowed."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import numpy as np
import pytest

from queen.serve.protocol.inflate import inflate, inflate_little
from queen.serve.types import ServeError
from tests.support.rest_bodies import ask, growth

MIB = 1 << 20


def _raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


PACKERS = {
    ("gzip", "gzip"): gzip.compress,
    ("x-gzip", "gzip"): gzip.compress,
    (" GZip ", "gzip"): gzip.compress,
    ("deflate", "zlib"): zlib.compress,
    ("deflate", "raw"): _raw_deflate,
}


@pytest.mark.parametrize(("names", "pack"), PACKERS.items(), ids=["-".join(names) for names in PACKERS])
@pytest.mark.parametrize("size", [0, 1, 5000, 1 << 18])
def test_inflate_up_to_the_limit(names: tuple[str, str], pack: Any, size: int) -> None:
    data = np.random.default_rng(0).integers(0, 4, size, np.uint8).tobytes()
    packed = pack(data)
    assert inflate(packed, names[0], size) == data
    if size:
        with pytest.raises(ServeError) as caught:
            inflate(packed, names[0], size - 1)
        assert caught.value.status == 413
    for bad in (packed + b"x", packed + b"\x00" * 100_000, packed[:-1], packed[: len(packed) // 2], b""):
        with pytest.raises(ServeError) as caught:
            inflate(bad, names[0], 1 << 20)
        assert caught.value.status == 400


def test_inflate_several_members() -> None:
    assert inflate(gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two"), "gzip", 6) == b"onetwo"
    with pytest.raises(ServeError) as caught:
        inflate(gzip.compress(b"one") + gzip.compress(b"four"), "gzip", 6)
    assert caught.value.status == 413
    with pytest.raises(ServeError) as caught:
        inflate(gzip.compress(b"") * 100_000, "gzip", 6)
    assert caught.value.status == 400


def test_inflate_refuses_other_encodings_and_passes_none() -> None:
    assert inflate(b"abc", "identity", 1) == b"abc"
    for name in ("br", "zstd", "gzip, gzip", "compress", "x" * 10_000):
        with pytest.raises(ServeError) as caught:
            inflate(b"abc", name, 100)
        assert caught.value.status == 415
        assert len(caught.value.message) < 200


def test_every_changed_byte_is_noticed() -> None:
    packed = gzip.compress(ask(), mtime=0)
    for at in range(10, len(packed)):
        changed = packed[:at] + bytes([packed[at] ^ 0x55]) + packed[at + 1 :]
        with pytest.raises(ServeError):
            inflate(changed, "gzip", 1 << 20)


@pytest.mark.parametrize(("names", "pack"), list(PACKERS.items())[2:], ids=["-".join(n) for n in list(PACKERS)[2:]])
def test_a_bomb_stays_small(names: tuple[str, str], pack: Any) -> None:
    bomb, found = pack(bytes(20 * MIB)), []

    def open_it() -> None:
        try:
            inflate(bomb, names[0], MIB)
        except ServeError as error:
            found.append(error.status)

    assert len(bomb) < MIB
    assert growth(open_it) < 4 * MIB
    assert found == [413]
    assert growth(lambda: zlib.decompress(bomb, 47 if names[1] != "raw" else -15)) > 16 * MIB


def test_a_little_is_inflated_and_more_is_left_alone() -> None:
    assert inflate_little(gzip.compress(bytes(100)), "gzip", 100) == bytes(100)
    assert inflate_little(gzip.compress(bytes(101)), "gzip", 100) is None
    assert inflate_little(bytes(101), "gzip", 100) is None  # however much it holds
    assert inflate_little(b"abc", "identity", 100) == b"abc"
    for body, name, status in ((b"abc", "gzip", 400), (b"abc", "br", 415)):
        with pytest.raises(ServeError) as caught:
            inflate_little(body, name, 100)
        assert caught.value.status == status
