"""Large requests, whose numbers are read in pieces: the same is accepted as where they are read at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.serve.protocol import number_lists, rest_read
from queen.serve.protocol.number_lists import cut_lists
from queen.serve.protocol.rest_read import read_query
from queen.serve.types import LARGE_BYTES, ModelSpec, Query, ServeError, TensorSpec

IMAGES = ModelSpec("m", "1", (TensorSpec("input", "FP32", (-1, 2, 3)),), 10)
TOKENS = ModelSpec("m", "1", (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1))), 10)
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.just(1e39))


@contextmanager
def in_pieces(size: int) -> Iterator[None]:
    """Every request is large, and a piece has so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest_read, "LARGE_BYTES", 0)
        patch.setattr(number_lists, "PIECE", size)
        patch.setattr(number_lists, "pause", lambda: None)
        yield


def read(body: bytes, spec: ModelSpec) -> Query | int:
    try:
        return read_query(body, None, spec, max_rows=8)
    except ServeError as error:
        return error.status


def same(one: Query | int, other: Query | int) -> bool:
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    tensors = [q.inputs if isinstance(q.inputs, dict) else {"": q.inputs} for q in (one, other)]
    equal = all(tensors[0][name].equal(tensors[1][name]) for name in tensors[0])
    return equal and (one.id, one.rows, one.answer_format) == (other.id, other.rows, other.answer_format)


@st.composite
def requests(draw: st.DrawFn) -> tuple[ModelSpec, str]:
    """Requests as clients write them: flat or nested, in any order, with or without blanks, and with other keys."""
    spec = draw(st.sampled_from([IMAGES, TOKENS]))
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    entries = []
    for tensor in spec.inputs:
        shape = (rows, *tensor.shape[1:]) if spec is IMAGES else (rows, length)
        elements = numbers if spec is IMAGES else st.integers(0, 2**70)
        count = int(np.prod(shape))
        data: Any = draw(st.lists(elements, min_size=count, max_size=count))
        if draw(st.booleans()):
            data = np.array(data, object).reshape(shape).tolist()
        entry = {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data}
        entries.append({key: entry[key] for key in draw(st.permutations(list(entry)))})
    more = draw(st.sampled_from([{}, {"id": "data"}, {"parameters": {"data": [1, [2]]}}, {"id": "ü"}, {"data": 1}]))
    request = draw(st.permutations([("inputs", entries), *more.items()]))
    return spec, json.dumps(dict(request), indent=draw(st.sampled_from([None, 1])))


@settings(deadline=None)
@given(requests(), st.integers(1, 40))
def test_what_is_read_in_pieces_is_what_is_read_at_once(made: tuple[ModelSpec, str], size: int) -> None:
    spec, text = made
    with in_pieces(size):
        pieces = read(text.encode(), spec)
    assert same(pieces, read(text.encode(), spec))


@settings(deadline=None, max_examples=300)
@given(requests(), st.integers(1, 40), st.lists(st.tuples(st.integers(0), st.sampled_from('[],:"}{ 1e-.\\tnull0'))))
def test_what_is_broken_is_refused_as_it_would_be_at_once(
    made: tuple[ModelSpec, str], size: int, changes: list[tuple[int, str]]
) -> None:
    spec, text = made
    for place, sign in changes:
        at = place % len(text)
        text = text[:at] + sign + text[at + place % 2 :]
    with in_pieces(size):
        pieces = read(text.encode(), spec)
    assert same(pieces, read(text.encode(), spec))


@pytest.mark.parametrize(
    "data",
    [
        "[1,2,3,4,5,6,]",
        "[1,2,3,,4,5,6]",
        "[,1,2,3,4,5,6]",
        "[1,2,3],[4,5,6]",
        "[[[1,2,3],[4,5,6]]],7]",
        "[[[1,2,3],[4,5]6]]",
        "[[[1,2,3],[4,5,6]]",
        "[[[1,2,3,4,5,6]]]",
        "[1 2,3,4,5,6]",
        "[1,2,3,4,5,true]",
        "[]",
        "[ ]",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lists_that_are_none(data: str, size: int) -> None:
    body = f'{{"inputs":[{{"name":"input","datatype":"FP32","shape":[1,2,3],"data":{data}}}]}}'.encode()
    assert read(body, IMAGES) == 400
    with in_pieces(size):
        assert read(body, IMAGES) == 400


def test_a_list_that_no_input_has_is_looked_at_too() -> None:
    head = '"inputs":[{"name":"input","datatype":"FP32","shape":[1,2,3],"data":[1,2,3,4,5,6]}]'
    with in_pieces(10):
        assert isinstance(read(f'{{{head},"parameters":{{"data":[1,2]}}}}'.encode(), IMAGES), Query)
        assert read(f'{{{head},"parameters":{{"data":[1 2]}}}}'.encode(), IMAGES) == 400


def test_a_mark_cannot_be_forged() -> None:
    text, lists = cut_lists(b'{"data": [1, 2], "x": "0"}')
    assert (json.loads(text), lists) == ({"data": "\0000", "x": "0"}, {"\0000": b"[1, 2]"})
    forged = b'{"data": [1, 2], "x": "\\u00000"}'
    assert cut_lists(forged) == (forged, {})


def test_the_numbers_of_large_requests_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(number_lists, "pause", lambda: pauses.append(None))
    rows = LARGE_BYTES // 24
    data = ",".join(["0.25"] * (6 * rows))
    body = f'{{"inputs":[{{"name":"input","datatype":"FP32","shape":[{rows},2,3],"data":[{data}]}}]}}'.encode()
    query = read_query(body, None, IMAGES, max_rows=rows)
    assert query.rows == rows
    assert len(pauses) >= len(data) / number_lists.PIECE
