"""Bodies that nobody should send: each gets a clear 4xx, in little memory."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.serve.protocol.rest_read import read_query
from queen.serve.types import ModelSpec, ServeError
from tests.support.rest_bodies import DIGITS, MAX_ROWS, TEXT, ask, ask_raw, entry, growth
from tests.support.rest_hostile import BINARY, GOOD, JSON, RAW, TOKENS, outputs_body, text_body, with_number

CASES = [
    *((f"json: {name}", body, None, DIGITS) for name, body in JSON.items()),
    *((f"tokens: {name}", body, None, TEXT) for name, body in TOKENS.items()),
    *((f"binary: {name}", body, length, DIGITS) for name, (body, length) in BINARY.items()),
]


def test_there_are_many_cases() -> None:
    assert len({name for name, *_ in CASES}) >= 150


@pytest.mark.parametrize(("body", "length", "spec"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_hostile_body_is_refused(body: bytes, length: int | None, spec: ModelSpec) -> None:
    with pytest.raises(ServeError) as caught:
        read_query(body, length, spec, max_rows=MAX_ROWS)
    assert caught.value.status in (400, 413)
    assert 0 < len(caught.value.message) < 600
    assert caught.value.message.isprintable()


def test_the_bodies_that_the_cases_spoil_are_good() -> None:
    assert read_query(GOOD, None, DIGITS, max_rows=MAX_ROWS).rows == 1
    assert read_query(with_number("0.25"), None, DIGITS, max_rows=MAX_ROWS).rows == 1
    assert read_query(text_body(), None, TEXT, max_rows=MAX_ROWS).rows == 1
    assert read_query(outputs_body({"name": "probabilities"}), None, DIGITS, max_rows=MAX_ROWS).rows == 1
    body, length = ask_raw(RAW)
    assert read_query(body, length, DIGITS, max_rows=MAX_ROWS).rows == 1


MANY = 1 << 19
LARGE = {
    "empty lists": b"[" + b"[]," * MANY + b"[]]",
    "nested lists": b"[" + (b"[" * 500 + b"]" * 500 + b",") * 2000 + b"0]",
    "objects": b"[" + b'{"":0},' * MANY + b"0]",
    "strings": b"[" + b'"a",' * MANY + b"0]",
    "numbers": b"[" + b"257," * MANY + b"0]",
}


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("where", ["data", "shape", "name", "parameters"])
def test_large_crowds_are_refused_before_they_are_parsed(data: bytes, where: str) -> None:
    body = ask(entry(**{where: "?"})).replace(b'"?"', data)
    found: list[ServeError] = []

    def read() -> None:
        try:
            read_query(body, None, DIGITS, max_rows=MAX_ROWS)
        except ServeError as error:
            found.append(error)

    assert growth(read) < len(body) / 10
    assert found[0].status == 413
    assert len(found[0].message) < 600


def test_a_long_string_is_refused_with_a_short_message() -> None:
    for where in ("data", "shape", "name", "parameters"):
        with pytest.raises(ServeError) as caught:
            read_query(ask(entry(**{where: ["a" * 4 * MANY]})), None, DIGITS, max_rows=MAX_ROWS)
        assert caught.value.status == 400
        assert len(caught.value.message) < 600


def test_large_crowds_would_take_much_memory() -> None:
    body = b"[" + b"[]," * 20_000 + b"[]]"
    assert growth(lambda: orjson.loads(body)) > 10 * len(body)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        key: ANY_JSON | st.lists(st.fixed_dictionaries({"name": st.just("input"), "shape": ANY_JSON}), max_size=2)
        for key in ("inputs", "outputs", "id", "parameters")
    },
)


def _refused_or_read(body: bytes, length: int | None) -> None:
    status, rows = 200, 1
    try:
        rows = read_query(body, length, DIGITS, max_rows=MAX_ROWS).rows
    except ServeError as error:
        status = error.status
    assert status in (200, 400, 413)
    assert 1 <= rows <= MAX_ROWS


@settings(max_examples=100, deadline=None)
@given(REQUEST)
def test_any_json_is_read_or_refused(request: dict[str, object]) -> None:
    _refused_or_read(orjson.dumps(request), None)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(-3, 500) | st.none(), st.integers(0, 600), st.integers(0, 30))
def test_any_bytes_are_read_or_refused(noise: bytes, length: int | None, at: int, cut: int) -> None:
    body = ask_raw(RAW)[0]
    _refused_or_read(body[:at] + noise + body[at + cut :], length)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5), ANY_JSON, max_size=4), st.text(max_size=20))
def test_whatever_else_a_request_holds_is_ignored_unless_a_key_is_repeated(extra: dict[str, object], name: str) -> None:
    inside = {key: value for key, value in extra.items() if key not in ("binary_data_output", "shared_memory_region")}
    body = ask(id=name, parameters=inside)
    if b"\\u003a" not in body.lower():
        assert read_query(body, None, DIGITS, max_rows=MAX_ROWS).id == name
        for key in orjson.loads(body):
            twice = body[:-1] + b"," + orjson.dumps(key) + b":1}"
            with pytest.raises(ServeError):
                read_query(twice, None, DIGITS, max_rows=MAX_ROWS)
    assert math.isfinite(read_query(GOOD, None, DIGITS, max_rows=MAX_ROWS).inputs.sum().item())  # type: ignore[union-attr]
