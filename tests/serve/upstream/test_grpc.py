"""What a broken or hostile upstream may send over gRPC: an answer is whole and right, or there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from queen.errors import UpstreamError
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.upstream.address import read_address
from queen.serve.upstream.client import Asking
from queen.serve.upstream.grpc import GrpcClient
from queen.serve.upstream.tensors import SentTensor
from tests.support.upstreams import free_port
from tests.support.waiting import wait_for

X = [SentTensor("input", "FP32", np.zeros((2, 1, 8, 8), np.float32))]
OUT = oip.ModelInferResponse.InferOutputTensor
FEATURES, LOGITS = np.array([[1, 2], [3, 4]], np.float32), np.array([[0.5], [-0.5]], np.float32)


def named(first: str, second: str) -> list[OUT]:
    return [OUT(name=first, datatype="FP32", shape=[2, 2]), OUT(name=second, datatype="FP32", shape=[2, 1])]


def answer(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "outputs": named("features", "logits"),
        "raw_output_contents": [FEATURES.tobytes(), LOGITS.tobytes()],
    }
    return oip.ModelInferResponse(**(fields | changes)).SerializeToString()


def typed(name: str, numbers: list[float], shape: list[int]) -> OUT:
    return OUT(name=name, datatype="FP32", shape=shape, contents=oip.InferTensorContents(fp32_contents=numbers))


WRONG = {
    "nothing": b"",
    "garbage": b"\xff" * 100,
    "truncated": answer()[:-5],
    "another question": answer(id="somebody else's"),
    "one content": answer(raw_output_contents=[FEATURES.tobytes()]),
    "three contents": answer(raw_output_contents=[b"", b"", b""]),
    "short": answer(raw_output_contents=[FEATURES.tobytes()[:-4], LOGITS.tobytes()]),
    "NaN": answer(raw_output_contents=[(FEATURES * np.nan).tobytes(), LOGITS.tobytes()]),
    "names": answer(outputs=named("a", "b")),
    "twice": answer(outputs=[OUT(name="logits", datatype="FP32", shape=[2, 2])] * 2),
    "negative": answer(outputs=[OUT(name="features", datatype="FP32", shape=[-2, -2]), OUT(name="logits")]),
    "bytes": answer(outputs=[OUT(name="features", datatype="BYTES", shape=[2, 2]), OUT(name="logits")]),
    "no numbers": answer(outputs=[typed("features", [], [2, 2]), typed("logits", [1], [2, 1])], raw_output_contents=[]),
    "too large": answer(raw_output_contents=[bytes(1 << 17), LOGITS.tobytes()]),
}  # fmt: skip


@contextmanager
def upstream(answers: Callable[[Any], bytes], port: int = 0) -> Iterator[int]:
    def handle(request: bytes, context: Any) -> bytes:
        return answers(context)

    server = grpc.server(ThreadPoolExecutor(4))
    method = grpc.unary_unary_rpc_method_handler(handle)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method})]
    )
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


@contextmanager
def client(port: int, timeout: float = 5.0) -> Iterator[GrpcClient]:
    made = GrpcClient(Asking(read_address(f"grpc://127.0.0.1:{port}"), "m", ("features", "logits"), timeout=timeout))
    made.most = 1 << 16
    yield made
    made.close()


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_answer_is_an_error(name):
    with upstream(lambda context: WRONG[name]) as port, client(port) as asking:
        with pytest.raises(UpstreamError) as caught:
            asking.ask(X)
        assert caught.value.kind == "unusable"


def test_raw_and_typed_answers_are_read():
    numbers = [typed("features", [1, 2, 3, 4], [2, 2]), typed("logits", [0.5, -0.5], [2, 1])]
    for raw in (answer(), answer(outputs=numbers, raw_output_contents=[])):
        with upstream(lambda context, raw=raw: raw) as port, client(port) as asking:
            assert asking.ask(X).outputs["features"].tolist() == FEATURES.tolist()


@pytest.mark.parametrize(("code", "kind"), [
    (grpc.StatusCode.INTERNAL, "rejected"), (grpc.StatusCode.INVALID_ARGUMENT, "rejected"),
    (grpc.StatusCode.UNAVAILABLE, "unreachable"), (grpc.StatusCode.NOT_FOUND, "unready"),
    (grpc.StatusCode.UNAUTHENTICATED, "unready"), (grpc.StatusCode.DEADLINE_EXCEEDED, "late"),
])  # fmt: skip
def test_what_went_wrong_is_told_apart(code, kind):
    with upstream(lambda context: context.abort(code, "no")) as port, client(port) as asking:
        with pytest.raises(UpstreamError) as caught:
            asking.ask(X)
        assert caught.value.kind == kind


def test_no_server_and_no_answer():
    with client(free_port()) as asking, pytest.raises(UpstreamError) as caught:
        asking.ask(X)
    assert caught.value.kind == "unreachable"
    with upstream(lambda context: time.sleep(1) or answer()) as port, client(port, timeout=0.2) as asking:
        with pytest.raises(UpstreamError) as caught:
            asking.ask(X)
        assert caught.value.kind == "late"


def test_after_every_reconnection_the_network_is_tried_before_an_answer_is_used():
    tried, port, is_right = [], free_port(), True

    def verify(ask) -> None:
        tried.append(ask(X))
        if not is_right:
            raise UpstreamError("another model", "other_model")

    with client(port) as asking:
        asking.verify = verify
        with upstream(lambda context: answer(), port):
            for _ in range(3):
                asking.ask(X)
        before = len(tried)
        assert before <= 2  # gRPC tells of the first connection in its own time
        is_right = False
        with upstream(lambda context: answer(), port):
            wait_for(lambda: kind_of_error(asking) == "other_model")  # gRPC tells of connections in its own time
            for _ in range(3):
                assert kind_of_error(asking) == "other_model"


def kind_of_error(asking: GrpcClient) -> str | None:
    """Why a question failed; None while gRPC waits before it connects again."""
    try:
        asking.ask(X)
    except UpstreamError as error:
        return error.kind if error.kind != "unreachable" else None
    return "none"
