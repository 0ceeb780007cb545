"""Goal 8: a body of exactly the limit is answered, one byte more is not, and memory is at most four times the limit."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from qa.serving.h2 import PATH
from qa.serving.memory import MIB, resident, watched
from qa.serving.rest import HOST, ask, chunked, get, head, post
from qa.serving.scenario import Check
from qa.serving.wide import SHAPE, pictures, wide_bundle
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.protocol.rest_read import BYTES_PER_VALUE
from tests.support.server import Server, started

INFER = "/v2/models/wide/infer"
ROW = 3 * 32 * 32  # numbers in a picture
TIMES = 4  # the limit, that a request may take in memory
AT_ONCE = 4
UNKNOWN_FIELD = b"\xfa\x3f"  # number 1023, with a length: nobody reads it, but it counts
FORMS = (
    "plain", "nested", "chunked", "gzip", "gzip that packs nothing", "binary", "binary gzip", "gRPC raw", "gRPC typed",
)  # fmt: skip
QUICK = ("plain", "chunked", "binary", "gzip")
FLOODS = {
    "fields after the last chunk": [b"0\r\n", *[b"a:b\r\n" * 13_000] * 200],
    "one field after the last chunk": [b"0\r\na: ", *[b"a" * 65_536] * 200],
    "an extension of a chunk": [b"5;", *[b"a" * 65_536] * 200],
}
"""What may follow the head of a request and belongs to no body."""
Ask = Callable[[], int]


@dataclass(frozen=True)
class Form:
    """A way to send much: a request of exactly the limit, and one of a byte more; both tell the status."""

    name: str
    exactly: Ask
    beyond: Ask
    times: float = TIMES


def run(folder: Path, quick: bool) -> list[Check]:
    """Each form on a server that never had a large request before, then several requests at once."""
    return _checked(folder, (8 if quick else 16) * MIB, "queen", QUICK if quick else FORMS)


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on servers that read whatever comes."""
    return _checked(folder, 8 * MIB, "qa.broken.greedy", QUICK[-2:])


def _checked(folder: Path, limit: int, module: str, names: Sequence[str]) -> list[Check]:
    checks = []
    for name in names:
        with wide_server(folder / name.replace(" ", "-"), limit, module) as server:
            checks.append(measured(server, forms(server, limit)[name], limit))
    with wide_server(folder / "at-once", limit, module) as server:
        checks.append(at_once(server, limit))
    with wide_server(folder / "floods", limit, module) as server:
        return [*checks, *flooded(server)]


@contextmanager
def wide_server(folder: Path, limit: int, module: str = "queen") -> Iterator[Server]:
    """A server of a model with large pictures, warm."""
    folder.mkdir()
    settings = {"max_body": limit, "max_rows": 2 * limit // (4 * ROW), "request_timeout": 60.0}
    with started(folder, bundle=wide_bundle(), module=module, **settings) as server:
        for _ in range(20):
            ask(server.rest, post(_numbers(8, 0), server.key, path=INFER))
        yield server


def measured(server: Server, form: Form, limit: int) -> Check:
    """Whether the limit is exact, and how much the server has grown at most meanwhile."""
    idle = resident(server.process.pid)
    with watched(server.process.pid) as most:
        statuses = form.exactly(), form.beyond()
    times = (most[0] - idle) / limit
    summary = f"{statuses[0]}, one more {statuses[1]}, memory {times:.1f} times the limit above idle"
    return Check(form.name, statuses == (200, 413) and times <= form.times, summary)


def at_once(server: Server, limit: int) -> Check:
    """Several of the largest requests at the same time: each may take as much as one."""
    idle, body = resident(server.process.pid), _json(limit)
    with watched(server.process.pid) as most, ThreadPoolExecutor(AT_ONCE) as pool:
        statuses = set(pool.map(lambda _: ask(server.rest, post(body, server.key, path=INFER)).status, range(AT_ONCE)))
    times = (most[0] - idle) / limit
    summary = f"{sorted(statuses)}, memory {times:.1f} times the limit above idle"
    return Check(f"{AT_ONCE} at once", statuses == {200} and times <= TIMES * AT_ONCE, summary)


def flooded(server: Server) -> list[Check]:
    """What belongs to no body, and requests whose answers nobody reads, fill no memory."""
    checks = []
    for name, flood in FLOODS.items():
        with watched(server.process.pid) as most:
            before, status = most[0], send_flood(server, flood)
        checks.append(_grown(name, most[0] - before, 4, 400 <= status < 500))
    with watched(server.process.pid) as most:
        before = most[0]
        statuses = {ask(server.rest, get("/v2") * 100_000).status for _ in range(5)}
    return [*checks, _grown("pages that nobody reads", most[0] - before, 8, statuses <= {200, 400})]


def send_flood(server: Server, flood: Sequence[bytes]) -> int:
    """The status of a request in chunks that goes on with a flood."""
    return ask(server.rest, head("POST", "/v2", "Transfer-Encoding: chunked"), *flood).status


def _grown(name: str, grown: int, mebibytes: int, refused: bool) -> Check:
    return Check(name, refused and grown < mebibytes * MIB, f"{grown / MIB:.1f} MiB of memory")


def forms(server: Server, limit: int) -> dict[str, Form]:
    """All forms, by name."""
    key, port = server.key, server.rest

    def send(body: bytes, *headers: str) -> Ask:
        return lambda: ask(port, post(body, key, *headers, path=INFER)).status

    def stream(body: bytes) -> Ask:
        start = head("POST", INFER, f"Authorization: Bearer {key}", "Transfer-Encoding: chunked")
        text = chunked([body[i : i + 65_536] for i in range(0, len(body), 65_536)])
        return lambda: ask(port, start, text).status

    def packed(body: bytes, level: int, *headers: str) -> Ask:
        return send(gzip.compress(body, level), "Content-Encoding: gzip", *headers)

    plain, nested = _json(limit), _json(limit, nested=True)
    less = _numbers(_rows(limit), limit - 4096)  # so that it fits also with what gzip adds
    raw, length = _binary(limit)
    header = f"Inference-Header-Content-Length: {length}"
    made = [
        Form("plain", send(plain), send(plain + b" ")),
        Form("nested", send(nested), send(nested + b" ")),
        Form("chunked", stream(plain), stream(plain + b" ")),
        Form("gzip", packed(plain, 9), packed(plain + b" ", 9)),
        Form("gzip that packs nothing", packed(less, 0), packed(plain, 0)),
        Form("binary", send(raw, header), send(raw + b"\0", header)),
        Form("binary gzip", packed(raw, 6, header), packed(raw + b"\0", 6, header)),
        Form("gRPC raw", *(_call(server, _raw_message(limit) + more) for more in (b"", b"\0")), times=5),  # see README
        Form("gRPC typed", *(_call(server, _typed_message(limit) + more) for more in (b"", b"\0"))),
    ]
    return {form.name: form for form in made}


def _numbers(rows: int, size: int, *, nested: bool = False) -> bytes:
    """A request of some rows in JSON, with spaces at the end up to a size."""
    shape = b"%d,%d,%d,%d" % (rows, *SHAPE)
    data = b",".join([b"0.5"] * (rows * ROW))
    if nested:
        line = b"[" + b",".join([b"0.5"] * 32) + b"]"
        plane = b"[" + b",".join([line] * 32) + b"]"
        data = b",".join([b"[" + b",".join([plane] * 3) + b"]"] * rows)
    text = b'{"inputs":[{"name":"input","datatype":"FP32","shape":[%b],"data":[%b]}]}' % (shape, data)
    return text + b" " * (size - len(text))


def _json(limit: int, *, nested: bool = False) -> bytes:
    """As many numbers as JSON may have, in exactly the limit."""
    return _numbers(_rows(limit), limit, nested=nested)


def _rows(limit: int) -> int:
    return (limit // BYTES_PER_VALUE - 100) // (ROW + 200)  # 200: commas and brackets between the numbers, nested


def _binary(limit: int) -> tuple[bytes, int]:
    """As many rows as fit, in exactly the limit: spaces in the JSON make up for the rest."""
    rows = (limit - 400) // (4 * ROW)
    x = pictures(rows).numpy()
    plain = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
    text = json.dumps({"inputs": [plain]}).encode()
    length = limit - x.nbytes
    return text + b" " * (length - len(text)) + x.tobytes(), length


def _raw_message(limit: int) -> bytes:
    x = pictures((limit - 400) // (4 * ROW)).numpy()
    part = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=x.shape)
    return _filled(oip.ModelInferRequest(model_name="wide", inputs=[part], raw_input_contents=[x.tobytes()]), limit)


def _typed_message(limit: int) -> bytes:
    x = pictures((limit // BYTES_PER_VALUE - 100) // ROW).numpy()
    contents = oip.InferTensorContents(fp32_contents=x.ravel())
    part = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=x.shape, contents=contents)
    return _filled(oip.ModelInferRequest(model_name="wide", inputs=[part]), limit)


def _filled(message: oip.ModelInferRequest, limit: int) -> bytes:
    """The message in exactly the limit, with a field of zeros that nobody knows."""
    text = message.SerializeToString()
    size = limit - len(text) - len(UNKNOWN_FIELD) - 4
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    return text + UNKNOWN_FIELD + length + bytes(size)


def _call(server: Server, message: bytes) -> Ask:
    """A call whose code is translated to a status of HTTP."""
    codes = {grpc.StatusCode.RESOURCE_EXHAUSTED: 413}
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

    def ask_it() -> int:
        with grpc.insecure_channel(f"{HOST}:{server.grpc}", options) as channel:
            try:
                call = channel.unary_unary(f"{PATH}ModelInfer")
                call(message, metadata=(("authorization", f"Bearer {server.key}"),), timeout=60)
            except grpc.RpcError as error:
                return codes.get(error.code(), -error.code().value[0])
        return 200

    return ask_it
