from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest

from queen.bench.datasets.pickles import STAND_INS, read_pickle
from queen.bench.datasets.trees import DataError
from tests.support.official_sets import noise, python2_pickle

DATA = noise(3, 5)


def test_a_pickle_of_python_2_is_what_the_standard_library_reads():
    content = {b"data": DATA, b"labels": [3, -1], b"batch_label": b"text", b"nested": [[b"a"], {b"b": 1}]}
    loaded = read_pickle(python2_pickle(content), "batch")
    real = pickle.loads(python2_pickle(content), encoding="bytes")
    for one in (loaded, real):
        assert np.array_equal(one.pop(b"data"), DATA)
        assert one == {key: value for key, value in content.items() if key != b"data"}


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("array", [DATA, np.asfortranarray(DATA), DATA[:, 0]], ids=["C", "F", "1-D"])
def test_a_pickle_of_python_3_too(protocol, array):
    for keys in ((b"data", b"labels"), ("data", "labels")):
        loaded = read_pickle(pickle.dumps(dict(zip(keys, (array, [1, 2]), strict=True)), protocol), "batch")
        assert np.array_equal(loaded[b"data"], array)
        assert loaded[b"labels"] == [1, 2]


class Calls:
    """Calls something when it is unpickled."""

    def __init__(self, function, *args, state=None):
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.reduced


def by_name(module: bytes, name: bytes, rest: bytes) -> bytes:
    return b"\x80\x02c" + module + b"\n" + name + b"\n" + rest


TEXT = b"X\x01\x00\x00\x00a"
ATTACKS = {
    "os.system": pickle.dumps(Calls(os.system, "true"), 2),
    "eval": pickle.dumps(Calls(eval, "1"), 2),
    "getattr": pickle.dumps(Calls(getattr, "a", "b"), 2),
    "np.load": pickle.dumps(Calls(np.load, "x"), 4),
    "a dotted name": by_name(b"numpy", b"ndarray.tofile", b"."),
    "builtins": by_name(b"builtins", b"dict", b")R."),
    "numpy's scalars": pickle.dumps({b"labels": np.int64(3)}, 2),
    "another codec": by_name(b"_codecs", b"encode", b"(" + TEXT + b"X\x05\x00\x00\x00rot13tR."),
    "numbers of 8 bytes": pickle.dumps({b"data": np.arange(3)}, 2),
    "an array of objects": pickle.dumps({b"data": np.array([None, {}], object)}, 2),
    "a structured array": pickle.dumps({b"data": np.zeros(2, "u1,u1")}, 2),
    "a state of a class": by_name(b"numpy", b"ndarray", b"}" + TEXT + b"K\x01sb."),
    "a state of the codec": by_name(b"_codecs", b"encode", b"N}" + TEXT + b"K\x01s\x86b."),
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent name": b"\x80\x02Pname\n.",
    "half": python2_pickle({b"data": DATA})[:40],
    "nothing": b"",
    "text": b"hello",
    "an unknown protocol": b"\x80\x63.",
    "a frame too large": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b".",
    "a string too large": b"\x80\x02T\xff\xff\xff\x7fa.",
    "not a dict": python2_pickle([1]),
}


@pytest.mark.parametrize("data", ATTACKS.values(), ids=ATTACKS)
def test_anything_else_is_refused(data):
    before = {name: dict(vars(kind)) for name, kind in STAND_INS.items()}
    with pytest.raises(DataError, match=r"'batch'"):
        read_pickle(data, "batch")
    assert {name: dict(vars(kind)) for name, kind in STAND_INS.items()} == before


def test_bare_arrays_in_odd_places_are_harmless():
    """The stand-ins can be called with anything, but make only themselves."""
    loaded = read_pickle(b"\x80\x02}" + TEXT + b"cnumpy\nndarray\n(J\xff\xff\xff\x7ftRs.", "batch")
    assert loaded[b"a"].size == 0
