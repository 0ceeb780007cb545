"""Bodies that nobody should send: each gets a clear 4xx, in little memory."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.serve.protocol.rest_read import read_query
from queen.serve.types import ModelSpec, ServeError
from tests.support.rest_bodies import DIGITS, MAX_ROWS, TEXT, ask, ask_raw, entry, growth, pictures

RAW = pictures().tobytes()
NUMBERS = pictures().ravel().tolist()
GOOD = ask()


def _with(number: str) -> bytes:
    """A good request with one number written otherwise."""
    return ask(entry(data=["?", *NUMBERS[1:]])).replace(b'"?"', number.encode())


def _text(**changes: object) -> bytes:
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
    mask = {"name": "attention_mask", "datatype": "INT64", "shape": [1, 3], "data": [1, 1, 1]}
    return orjson.dumps({"inputs": [{**ids, **changes}, mask]})


def _outputs(*outputs: object, **changes: object) -> bytes:
    return ask(outputs=list(outputs), **changes)


JSON: dict[str, bytes] = {
    "empty body": b"",
    "spaces": b"   ",
    "NaN": _with("NaN"),
    "Infinity": _with("Infinity"),
    "-Infinity": _with("-Infinity"),
    "nan in lower case": _with("nan"),
    "1e999": _with("1e999"),
    "-1e999": _with("-1e999"),
    "beyond float32": _with("1e39"),
    "beyond float32, negative": _with("-3.5e38"),
    "integer beyond float64": _with("1" + "0" * 400),
    "hexadecimal": _with("0x10"),
    "leading zero": _with("01"),
    "plus sign": _with("+1"),
    "number without digits": _with("."),
    "string": _with('"1.0"'),
    "string that is nan": _with('"nan"'),
    "null": _with("null"),
    "true": _with("true"),
    "false": _with("false"),
    "object in data": _with("{}"),
    "list in flat data": _with("[1]"),
    "long string in data": _with('"' + "a" * 100_000 + '"'),
    "only booleans": ask(entry(data=[True] * 64)),
    "only null": ask(entry(data=[None] * 64)),
    "data is a number": ask(entry(data=1.0)),
    "data is a string": ask(entry(data="A" * 64)),
    "data is null": ask(entry(data=None)),
    "data is an object": ask(entry(data={"0": 1.0})),
    "data is empty": ask(entry(data=[])),
    "no data": ask(entry(data=...)),
    "one number too few": ask(entry(data=NUMBERS[1:])),
    "one number too many": ask(entry(data=[*NUMBERS, 0.5])),
    "ragged": ask(entry(data=[[[[0.5] * 8] * 7 + [[0.5] * 7]]])),
    "ragged, right count": ask(entry(data=[[[[0.5] * 8] * 6 + [[0.5] * 7, [0.5] * 9]]])),
    "number beside a list": ask(entry(data=[[[[0.5] * 8] * 7 + [0.5]]])),
    "nested too little": ask(entry(data=[NUMBERS])),
    "nested too much": ask(entry(data=[[[[[0.5]] * 8] * 8]])),
    "nested otherwise": ask(entry(data=[[[0.5] * 16] * 4])),
    "depth bomb": b"[" * 100_000,
    "closed depth bomb": b"[" * 100_000 + b"]" * 100_000,
    "depth bomb of objects": b'{"a":' * 100_000,
    "depth bomb in data": ask(entry(data="?")).replace(b'"?"', b"[" * 900 + b"]" * 900),
    "depth bomb in parameters": ask(parameters="?").replace(b'"?"', b"[" * 900 + b"]" * 900),
    "shape of floats": ask(entry(shape=[1.0, 1, 8, 8])),
    "shape of strings": ask(entry(shape=["1", 1, 8, 8])),
    "shape of booleans": ask(entry(shape=[True, True, 8, 8])),
    "shape with null": ask(entry(shape=[None, 1, 8, 8])),
    "shape nested": ask(entry(shape=[[1, 1, 8, 8]])),
    "shape is a number": ask(entry(shape=64)),
    "shape is empty": ask(entry(shape=[])),
    "no shape": ask(entry(shape=...)),
    "rank too small": ask(entry(shape=[8, 8])),
    "rank too large": ask(entry(shape=[1, 1, 1, 8, 8])),
    "shape of a thousand ones": ask(entry(shape=[1] * 1000)),
    "other size": ask(entry(shape=[1, 1, 4, 16])),
    "any size": ask(entry(shape=[-1, 1, 8, 8])),
    "negative rows": ask(entry(shape=[-5, 1, 8, 8])),
    "two negative sizes": ask(entry(shape=[1, 1, -8, -8])),
    "no rows": ask(entry(shape=[0, 1, 8, 8], data=[])),
    "product overflows to fit": ask(entry(shape=[2**63 + 1, 1, 8, 8])),
    "rows beyond int64": ask(entry(shape=[2**64 - 1, 1, 8, 8])),
    "rows beyond everything": ask(entry(shape=["?", 1, 8, 8])).replace(b'"?"', b"1" + b"0" * 300),
    "huge rows": ask(entry(shape=[2**40, 1, 8, 8])),
    "more rows than allowed": ask(entry(shape=[5, 1, 8, 8], data=[0.5] * 320)),
    "more rows than data": ask(entry(shape=[2, 1, 8, 8])),
    "no datatype": ask(entry(datatype=...)),
    "datatype is null": ask(entry(datatype=None)),
    "datatype is a list": ask(entry(datatype=["FP32"])),
    "unknown datatype": ask(entry(datatype="FP8")),
    "lower case": ask(entry(datatype="fp32")),
    "bytes": ask(entry(datatype="BYTES")),
    "pixels as bytes": ask(entry(datatype="UINT8", data=[7] * 64)),
    "booleans for floats": ask(entry(datatype="BOOL", data=[True] * 64)),
    "no inputs": orjson.dumps({"id": "1"}),
    "inputs is null": orjson.dumps({"inputs": None}),
    "inputs is empty": orjson.dumps({"inputs": []}),
    "inputs is an object": orjson.dumps({"inputs": entry()}),
    "inputs of numbers": orjson.dumps({"inputs": [1]}),
    "duplicate inputs": ask(entry(), entry()),
    "other name": ask(entry(name="images")),
    "no name": ask(entry(name=...)),
    "name is a list": ask(entry(name=["input"])),
    "additional input": ask(entry(), entry(name="more")),
    "a thousand inputs": ask(*[entry(name=f"{i}", data=[]) for i in range(1000)]),
    "body is a list": b"[1, 2]",
    "body is a number": b"1",
    "body is null": b"null",
    "invalid UTF-8": GOOD.replace(b'"input"', b'"\xff\xfe"'),
    "invalid UTF-8 in the id": ask(id="?").replace(b'"?"', b'"\xc3\x28"'),
    "surrogate": ask(id="?").replace(b'"?"', b'"\\ud800"'),
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "zero byte": GOOD.replace(b'"input"', b'"in\x00put"'),
    "bytes after the end": GOOD + b"x",
    "zeros after the end": GOOD + b"\x00" * 16,
    "two bodies": GOOD + GOOD,
    "cut": GOOD[:-1],
    "cut in a number": GOOD[:200],
    "comment": GOOD.replace(b"{", b"/* */{", 1),
    "comma at the end": GOOD[:-1] + b",}",
    "single quotes": GOOD.replace(b'"', b"'"),
    "binary": bytes(range(256)) * 4,
    "repeated key": GOOD[:-1] + b"," + GOOD[1:],
    "repeated key in an input": GOOD.replace(b'"name":"input"', b'"name":"input","shape":[9],"name":"input"'),
    "repeated key written otherwise": GOOD[:-1] + b',"in\\u0070uts":' + orjson.dumps([entry()]) + b"}",
    "repeated key hidden by an escaped colon": GOOD[:-1] + b',"id":"a","id":"\\u003A"}',
    "crowded parameters": ask(parameters={"x": [0] * 2000}),
    "id is a number": ask(id=7),
    "id is a list": ask(id=["a"]),
    "id too long": ask(id="a" * 257),
    "output features": _outputs({"name": "features"}),
    "output logits": _outputs({"name": "logits"}),
    "output twice": _outputs({"name": "probabilities"}, {"name": "probabilities"}),
    "output without a name": _outputs({}),
    "output is a string": _outputs("probabilities"),
    "outputs is an object": ask(outputs={"name": "probabilities"}),
    "outputs is true": ask(outputs=True),
    "output in shared memory": _outputs({"name": "probabilities", "parameters": {"shared_memory_region": "a"}}),
    "input in shared memory": ask(entry(data=..., parameters={"shared_memory_region": "a"})),
    "binary_data is a number": _outputs({"name": "probabilities", "parameters": {"binary_data": 1}}),
    "binary_data_output is a string": ask(parameters={"binary_data_output": "true"}),
    "parameters is a list": ask(parameters=[1]),
    "parameters of an output is a string": _outputs({"name": "probabilities", "parameters": "x"}),
    **{
        f"classification {value!r}": _outputs({"name": "probabilities", "parameters": {"classification": value}})
        for value in (0, -1, 1.5, "3", True, [2])
    },
    "binary size without a header": ask(entry(data=..., parameters={"binary_data_size": 256})),
}

TOKENS: dict[str, bytes] = {
    "negative id": _text(data=[1, -2, 3]),
    "fraction as id": _text(data=[1, 2.0, 3]),
    "boolean as id": _text(data=[1, True, 3]),
    "id beyond int64": _text(data=[1, 2**63, 3]),
    "id beyond uint64": _text(data=[1, 2, 3]).replace(b"[1,2,3]", b"[1,2,18446744073709551616]"),
    "id beyond its datatype": _text(datatype="INT32", data=[1, 2**31, 3]),
    "id beyond a byte": _text(datatype="UINT8", data=[1, 256, 3]),
    "unsigned id beyond int64": _text(datatype="UINT64", data=[1, 2**63, 3]),
    "floats as ids": _text(datatype="FP32", data=[1.0, 2.0, 3.0]),
    "rows differ": _text(shape=[3, 1]),
    "no tokens": _text(shape=[1, 0], data=[]),
    "negative length": _text(shape=[1, -3]),
    "no mask": orjson.dumps({"inputs": orjson.loads(_text())["inputs"][:1]}),
    "ids twice": orjson.dumps({"inputs": [orjson.loads(_text())["inputs"][0]] * 2}),
    "two terabytes of tokens": _text(shape=[4, 2**38]),
}

NAN = b"\x00\x00\xc0\x7f" + RAW[4:]
INFINITE = b"\x00\x00\x80\xff" + RAW[4:]
BOTH = ask(entry(parameters={"binary_data_size": 256}))
BINARY: dict[str, tuple[bytes, int | None]] = {
    "no header length": (ask_raw(RAW)[0], None),
    "header length 0": (ask_raw(RAW)[0], 0),
    "header length negative": (ask_raw(RAW)[0], -1),
    "header length beyond the body": (ask_raw(RAW)[0], 10_000),
    "header length huge": (ask_raw(RAW)[0], 2**70),
    "header length one too small": (ask_raw(RAW)[0], ask_raw(RAW)[1] - 1),
    "header length one too large": (ask_raw(RAW)[0], ask_raw(RAW)[1] + 1),
    "header length is the body": (ask_raw(RAW)[0], len(ask_raw(RAW)[0])),
    "empty body with a header length": (b"", 1),
    "bytes after JSON data": (GOOD + b"1234", len(GOOD)),
    "size one too small": ask_raw(RAW, size=255),
    "size one too large": ask_raw(RAW, size=257),
    "size zero": ask_raw(RAW, size=0),
    "size negative": ask_raw(RAW, size=-256),
    "size huge": ask_raw(RAW, size=2**63),
    "size a float": ask_raw(RAW, size=256.0),
    "size a string": ask_raw(RAW, size="256"),
    "size a boolean": ask_raw(RAW, size=True),
    "one byte missing": (ask_raw(RAW)[0][:-1], ask_raw(RAW)[1]),
    "one byte too many": (ask_raw(RAW)[0] + b"\x00", ask_raw(RAW)[1]),
    "half the numbers": ask_raw(RAW[:128]),
    "twice the numbers": ask_raw(RAW * 2),
    "other datatype's size": ask_raw(RAW, datatype="FP64"),
    "NaN in bytes": ask_raw(NAN),
    "infinity in bytes": ask_raw(INFINITE),
    "infinity in FP16": ask_raw(b"\x00\x7c" * 64, datatype="FP16"),
    "FP64 beyond FP32": ask_raw(b"\x00\x00\x00\x00\x00\x00\xe0\x7f" * 64, datatype="FP64"),
    "bytes as pixels": ask_raw(bytes(64), datatype="UINT8"),
    "rows beyond the bytes": ask_raw(RAW, shape=[4, 1, 8, 8]),
    "rows beyond all memory": ask_raw(RAW, shape=[2**62, 1, 8, 8]),
    "data and bytes": (BOTH + RAW, len(BOTH)),
}

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
    assert read_query(_with("0.25"), None, DIGITS, max_rows=MAX_ROWS).rows == 1
    assert read_query(_text(), None, TEXT, max_rows=MAX_ROWS).rows == 1
    assert read_query(_outputs({"name": "probabilities"}), None, DIGITS, max_rows=MAX_ROWS).rows == 1
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
