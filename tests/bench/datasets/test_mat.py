from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from queen.bench.datasets import mat
from queen.bench.datasets.mat import read_mat
from queen.bench.datasets.trees import DataError, reading


def saved(content: dict[str, object], *, compressed: bool = False) -> bytes:
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, content, do_compression=compressed)
    return buffer.getvalue()


KINDS = st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
SHAPES = arrays.array_shapes(min_dims=2, max_dims=4, max_side=4)


@given(
    x=KINDS.flatmap(lambda kind: arrays.arrays(kind, SHAPES)),
    compressed=st.booleans(),
    name=st.sampled_from(["X", "y", "longer_name"]),
)
def test_arrays_are_those_that_scipy_wrote(x, compressed, name):
    arrays = read_mat(saved({name: x, "other": np.ones((1, 2))}, compressed=compressed))
    assert set(arrays) == {name, "other"}
    assert arrays[name].dtype == x.dtype
    assert arrays[name].shape == x.shape
    assert np.array_equal(arrays[name], x, equal_nan=x.dtype.kind == "f")


def test_other_things_are_left_out():
    content = {"text": "hello", "cell": np.array([1, "a"], object), "complex": np.ones((2, 2)) * 1j, "s": {"a": 1}}
    assert set(read_mat(saved(content | {"X": np.ones((2, 2))}))) == {"X"}


def test_the_other_byte_order():
    x = np.arange(6, dtype=">i4").reshape(2, 3)
    text = b"MATLAB 5.0".ljust(124) + b"\x01\x00MI"

    def part(kind: int, data: bytes) -> bytes:
        return np.array([kind, len(data)], ">u4").tobytes() + data + bytes(-len(data) % 8)

    inner = part(6, np.array([12, 0], ">u4").tobytes()) + part(5, np.array([2, 3], ">i4").tobytes())
    inner += part(1, b"X") + part(5, x.tobytes(order="F"))
    assert np.array_equal(read_mat(text + part(14, inner))["X"], x)


DATA = saved({"X": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.ones((3, 1))})


@given(where=st.integers(0, len(DATA) - 1), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_never_ends_the_process(where, value, cut):
    """The second byte of the kind of numbers is enough to crash scipy's reader (1.17)."""
    damaged = DATA[:where] if cut else DATA[:where] + bytes([value]) + DATA[where + 1 :]
    try:
        with reading("file"):
            arrays = read_mat(damaged)
    except DataError as error:
        assert str(error)  # noqa: PT017
    else:
        assert all(array.nbytes <= len(DATA) for array in arrays.values())


@pytest.mark.parametrize("kind", [0, 8, 10, 11, 16, 201])
def test_an_unknown_kind_of_numbers_is_refused(kind):
    place = DATA.index(b"\x02\x00\x00\x00\x18\x00\x00\x00")  # 24 numbers of the kind 2
    with pytest.raises(DataError, match=f"unknown kind {kind}"):
        read_mat(DATA[:place] + bytes([kind]) + DATA[place + 1 :])


def test_what_is_compressed_too_well_is_refused(monkeypatch):
    data = saved({"X": np.zeros((100, 100), np.uint8)}, compressed=True)
    assert read_mat(data)["X"].size == 10_000
    monkeypatch.setattr(mat, "MAX_FILE", 1000)
    with pytest.raises(DataError, match="too large"):
        read_mat(data)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89HDF\r\n" + bytes(200)], ids=["empty", "text", "version 7.3"])
def test_other_files_are_refused(data):
    with pytest.raises(DataError, match="expected a MATLAB 5 file"):
        read_mat(data)
