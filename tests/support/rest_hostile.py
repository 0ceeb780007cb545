"""Request bodies that nobody should send: each must be refused."""

from __future__ import annotations

import orjson

from tests.support.rest_bodies import ask, ask_raw, entry, pictures

RAW = pictures().tobytes()
NUMBERS = pictures().ravel().tolist()
GOOD = ask()


def with_number(number: str) -> bytes:
    """A good request with one number written otherwise."""
    return ask(entry(data=["?", *NUMBERS[1:]])).replace(b'"?"', number.encode())


def text_body(**changes: object) -> bytes:
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
    mask = {"name": "attention_mask", "datatype": "INT64", "shape": [1, 3], "data": [1, 1, 1]}
    return orjson.dumps({"inputs": [{**ids, **changes}, mask]})


def outputs_body(*outputs: object, **changes: object) -> bytes:
    return ask(outputs=list(outputs), **changes)


JSON: dict[str, bytes] = {
    "empty body": b"",
    "spaces": b"   ",
    "NaN": with_number("NaN"),
    "Infinity": with_number("Infinity"),
    "-Infinity": with_number("-Infinity"),
    "nan in lower case": with_number("nan"),
    "1e999": with_number("1e999"),
    "-1e999": with_number("-1e999"),
    "beyond float32": with_number("1e39"),
    "beyond float32, negative": with_number("-3.5e38"),
    "integer beyond float64": with_number("1" + "0" * 400),
    "hexadecimal": with_number("0x10"),
    "leading zero": with_number("01"),
    "plus sign": with_number("+1"),
    "number without digits": with_number("."),
    "string": with_number('"1.0"'),
    "string that is nan": with_number('"nan"'),
    "null": with_number("null"),
    "true": with_number("true"),
    "false": with_number("false"),
    "object in data": with_number("{}"),
    "list in flat data": with_number("[1]"),
    "long string in data": with_number('"' + "a" * 100_000 + '"'),
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
    "output features": outputs_body({"name": "features"}),
    "output logits": outputs_body({"name": "logits"}),
    "output twice": outputs_body({"name": "probabilities"}, {"name": "probabilities"}),
    "output without a name": outputs_body({}),
    "output is a string": outputs_body("probabilities"),
    "outputs is an object": ask(outputs={"name": "probabilities"}),
    "outputs is true": ask(outputs=True),
    "output in shared memory": outputs_body({"name": "probabilities", "parameters": {"shared_memory_region": "a"}}),
    "input in shared memory": ask(entry(data=..., parameters={"shared_memory_region": "a"})),
    "binary_data is a number": outputs_body({"name": "probabilities", "parameters": {"binary_data": 1}}),
    "binary_data_output is a string": ask(parameters={"binary_data_output": "true"}),
    "parameters is a list": ask(parameters=[1]),
    "parameters of an output is a string": outputs_body({"name": "probabilities", "parameters": "x"}),
    **{
        f"classification {value!r}": outputs_body({"name": "probabilities", "parameters": {"classification": value}})
        for value in (0, -1, 1.5, "3", True, [2])
    },
    "binary size without a header": ask(entry(data=..., parameters={"binary_data_size": 256})),
}

TOKENS: dict[str, bytes] = {
    "negative id": text_body(data=[1, -2, 3]),
    "fraction as id": text_body(data=[1, 2.0, 3]),
    "boolean as id": text_body(data=[1, True, 3]),
    "id beyond int64": text_body(data=[1, 2**63, 3]),
    "id beyond uint64": text_body(data=[1, 2, 3]).replace(b"[1,2,3]", b"[1,2,18446744073709551616]"),
    "id beyond its datatype": text_body(datatype="INT32", data=[1, 2**31, 3]),
    "id beyond a byte": text_body(datatype="UINT8", data=[1, 256, 3]),
    "unsigned id beyond int64": text_body(datatype="UINT64", data=[1, 2**63, 3]),
    "floats as ids": text_body(datatype="FP32", data=[1.0, 2.0, 3.0]),
    "rows differ": text_body(shape=[3, 1]),
    "no tokens": text_body(shape=[1, 0], data=[]),
    "negative length": text_body(shape=[1, -3]),
    "no mask": orjson.dumps({"inputs": orjson.loads(text_body())["inputs"][:1]}),
    "ids twice": orjson.dumps({"inputs": [orjson.loads(text_body())["inputs"][0]] * 2}),
    "two terabytes of tokens": text_body(shape=[4, 2**38]),
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
