"""A header that decides something comes once: two keys are refused alike on every page, whichever comes first."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from queen.serve.grpc import NAME
from queen.serve.protocol import oip_pb2 as oip
from tests.support.grpc_stub import message
from tests.support.http import body, head, talk
from tests.support.server import served_in_thread
from tests.support.waiting import PATIENCE

PAGES = [
    ("POST", "/v2/models/digits/infer"),
    ("POST", "/v2/models/digits/versions/1/infer"),
    ("POST", "/v2/models/other/infer"),
    ("GET", "/v2/models"),
    ("GET", "/v2/models/digits"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/admin/overview"),
    ("GET", "/admin/clients"),
    ("POST", "/admin/revoke"),
    ("GET", "/v2/health/ready"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with served_in_thread(tmp_path_factory.mktemp("headers"), grpc_port=0) as server:
        yield server


def ask(served, method: str, path: str, *headers: str, content: bytes = b""):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers]
    status, _, answer = asyncio.run(talk(served.rest, "\r\n".join([*lines, "", ""]).encode() + content))
    return status, json.loads(answer) if answer.startswith(b"{") else answer


@pytest.mark.parametrize(("method", "path"), PAGES, ids=str)
def test_two_keys_are_refused_on_every_page_in_any_order(served, method, path):
    pairs = [(served.key, served.admin), (served.admin, served.key), (served.admin, "wrong"), (served.key,) * 2]
    before = served.service.guard.ledger.standing("alice").queries
    for first, second in pairs:
        headers = [f"Authorization: Bearer {first}", f"AUTHORIZATION: Bearer {second}"]
        status, answer = ask(served, method, path, *headers, content=body() if method == "POST" else b"")
        assert (status, answer) == (400, {"error": "expected one header 'authorization', got 2"})
    assert served.service.guard.ledger.standing("alice").queries == before


@pytest.mark.parametrize("name", ["Content-Encoding", "Inference-Header-Content-Length"])
def test_so_are_others_that_say_how_to_read_the_body(served, name):
    value = "gzip" if name == "Content-Encoding" else str(len(body()))
    parts = head(served.key, len(body()), f"{name}: {value}", f"{name}: {value}"), body()
    status, _, answer = asyncio.run(talk(served.rest, *parts))
    assert (status, json.loads(answer)) == (400, {"error": f"expected one header '{name.lower()}', got 2"})


def test_headers_that_decide_nothing_may_come_twice(served):
    parts = head(served.key, len(body()), "X-Trace: 1", "X-Trace: 2", "Via: 1.1 a", "Via: 1.1 b"), body()
    assert asyncio.run(talk(served.rest, *parts))[0] == 200


def test_two_keys_are_refused_over_grpc(served):
    port = served.grpc

    def code(*keys: str) -> grpc.StatusCode:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            metadata = tuple(("authorization", f"Bearer {key}") for key in keys)
            try:
                call = channel.unary_unary(f"/{NAME}/ModelInfer")
                oip.ModelInferResponse.FromString(
                    call(message().SerializeToString(), metadata=metadata, timeout=PATIENCE)
                )
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

    assert code(served.key) == grpc.StatusCode.OK
    for keys in ((served.key, served.admin), (served.admin, served.key), ("wrong", served.key), (served.key,) * 2):
        assert code(*keys) == grpc.StatusCode.INVALID_ARGUMENT
