"""What a broken or hostile upstream may send over HTTP: an answer is whole and right, or there is none."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np
import pytest

from queen.errors import UpstreamError
from queen.serve.upstream.address import read_address
from queen.serve.upstream.client import Asking
from queen.serve.upstream.rest import RestClient
from queen.serve.upstream.tensors import SentTensor
from tests.support.hostile_upstream import hostile_upstream, http, output
from tests.support.upstreams import free_port

X = [SentTensor("input", "FP32", np.zeros((2, 1, 8, 8), np.float32))]
FEATURES, LOGITS = [[1.0, 2.0], [3.0, 4.0]], [[0.5], [-0.5]]
BOTH = [output("features", FEATURES), output("logits", LOGITS)]


def reply(outputs=BOTH, **more) -> bytes:
    return json.dumps({"model_name": "m", "outputs": outputs, **more}).encode()


def raw(parts, *, claimed=None, length=None) -> bytes:
    """An answer with raw tensors behind its JSON; `claimed` sizes and header length may be wrong."""
    packed = [struct.pack(f"<{len(numbers)}f", *numbers) for _, _, numbers in parts]
    outputs = [
        {"name": n, "datatype": "FP32", "shape": s, "parameters": {"binary_data_size": (claimed or len(p))}}
        for (n, s, _), p in zip(parts, packed, strict=True)
    ]
    head = json.dumps({"outputs": outputs}).encode()
    return http(head + b"".join(packed), f"Inference-Header-Content-Length: {length or len(head)}")


RAW = [("features", [2, 2], [1, 2, 3, 4]), ("logits", [2, 1], [0.5, -0.5])]
ANSWERS = {
    "nothing": b"",
    "no http": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": http(reply()[:40], length=len(reply())),
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + reply(),
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + reply()[:20],
    "a broken chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + reply(),
    "an endless chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" + reply(),
    "a huge body": http(b"", length=1 << 40),
    "a million headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000,
    "a long header": b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000,
    "a redirect": http(b"", "Location: http://127.0.0.1:1/", status="302 Found"),
    "an error": http(b'{"error": "no"}', status="400 Bad Request"),
    "a server error": http(b"<html>", status="500 Oops"),
    "unavailable": http(b"", status="503 Busy"),
    "no content": http(b"", status="204 No Content"),
    "packed": http(gzip.compress(reply()), "Content-Encoding: gzip"),
    "no json": http(b"\xff\xfe{}"),
    "a list": http(b"[]"),
    "deep json": http(b"[" * 100_000),
    "no outputs": http(b"{}"),
    "outputs of words": http(reply(["features"])),
    "one missing": http(reply(BOTH[:1])),
    "twice the same": http(reply([*BOTH, BOTH[0]])),
    "another question": http(reply(id="somebody else's")),
    "NaN": http(reply().replace(b"3.0", b"NaN")),
    "null": http(reply().replace(b"3.0", b"null")),
    "words": http(reply().replace(b"3.0", b'"3.0"')),
    "truth": http(reply([output("features", FEATURES, data=[True] * 4), BOTH[1]])),
    "infinite as FP32": http(reply().replace(b"3.0", b"3e300")),
    "ragged": http(reply([output("features", FEATURES, data=[[1, 2], [3]]), BOTH[1]])),
    "too few numbers": http(reply([output("features", FEATURES, data=[1, 2, 3]), BOTH[1]])),
    "three dimensions": http(reply([output("features", FEATURES, shape=[1, 2, 2]), BOTH[1]])),
    "a shape of words": http(reply([output("features", FEATURES, shape="22"), BOTH[1]])),
    "a negative shape": http(reply([output("features", FEATURES, shape=[-2, -2]), BOTH[1]])),
    "a huge shape": http(reply([output("features", FEATURES, shape=[1 << 62, 4]), BOTH[1]])),
    "bytes": http(reply([output("features", FEATURES, datatype="BYTES"), BOTH[1]])),
    "a datatype that is none": http(reply([output("features", FEATURES, datatype=7), BOTH[1]])),
    "raw that is too short": raw([RAW[0], ("logits", [2, 1], [0.5])]),
    "raw that claims more": raw(RAW, claimed=1 << 40),
    "raw that claims less": raw(RAW, claimed=4),
    "a header length beyond the body": raw(RAW, length=1 << 20),
    "a header length that is none": http(reply(), "Inference-Header-Content-Length: -1"),
}  # fmt: skip
MAY_BE_THE_REQUEST = {"an error", "a server error"}


def client(url: str, **options) -> RestClient:
    asking = Asking(read_address(url), "m", ("features", "logits"), timeout=options.pop("timeout", 5.0))
    made = RestClient(asking, **options)
    made.most = 1 << 16
    return made


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_no_answer_is_an_error_and_the_connection_is_not_used_again(name):
    with hostile_upstream(lambda question: ANSWERS[name]) as upstream:
        asking = client(upstream.url, binary=name.startswith("raw"))
        with pytest.raises(UpstreamError):
            asking.ask(X)
        assert upstream.questions <= 2
        upstream.answer = lambda question: http(reply(id=question["id"]))
        assert asking.ask(X).outputs["features"].tolist() == FEATURES


def test_whole_answers_in_json_and_raw_with_outputs_that_nobody_asked_for():
    more = output("embedding", [[1.0]])
    for answer in (http(reply([more, *BOTH])), raw([*RAW, ("other", [1, 1], [9])]), http(reply(), "X: y")):
        with hostile_upstream(lambda question, answer=answer: answer) as upstream:
            got = client(upstream.url, binary=False).ask(X)
            assert {name: values.tolist() for name, values in got.outputs.items()} == {
                "features": FEATURES, "logits": LOGITS
            }  # fmt: skip


def test_raw_tensors_are_sent_to_who_says_that_it_takes_them():
    asked = []
    with hostile_upstream(lambda question: asked.append(question) or http(reply())) as upstream:
        client(upstream.url).ask(X)
        upstream.extensions = ["binary_tensor_data"]
        client(upstream.url).ask(X)
    assert "data" in asked[0]["inputs"][0]
    assert asked[1]["inputs"][0]["parameters"] == {"binary_data_size": 512}
    assert [one["name"] for one in asked[1]["outputs"]] == ["features", "logits"]


def test_an_answer_that_trickles_in_is_late_as_a_whole():
    with hostile_upstream(lambda question: http(reply())) as upstream:
        upstream.pause = 0.02  # each byte in time, all of them not
        with pytest.raises(UpstreamError) as caught:
            client(upstream.url, binary=False, timeout=0.5).ask(X)
        assert caught.value.kind == "late"


def test_connections_are_kept_and_one_that_was_closed_is_replaced():
    with hostile_upstream(lambda question: http(reply())) as upstream:
        asking, verified = client(upstream.url, binary=False), []
        asking.verify = lambda ask: verified.append(ask(X).outputs)
        for _ in range(5):
            asking.ask(X)
        assert (upstream.connections, len(verified)) == (1, 1)
        upstream.closing = 1
        for _ in range(3):
            asking.ask(X)
        assert (upstream.connections, len(verified)) == (2, 2)


def test_a_server_that_closes_every_connection_is_verified_before_every_question():
    with hostile_upstream(lambda question: http(reply(), "Connection: close")) as upstream:
        upstream.closing = 1000
        asking, verified = client(upstream.url, binary=False), []
        asking.verify = lambda ask: verified.append(ask(X).outputs)
        for _ in range(5):
            asking.ask(X)
        assert (upstream.connections, len(verified)) == (10, 5)


def test_a_question_whose_connection_broke_is_asked_once_more():
    answers = [b"", http(reply())]
    with hostile_upstream(lambda question: answers.pop(0)) as upstream:
        assert client(upstream.url, binary=False).ask(X).outputs["logits"].tolist() == LOGITS
        assert upstream.questions == 2


def test_a_new_connection_on_which_another_model_answers_is_not_used():
    def refuse(ask) -> None:
        raise UpstreamError("another model", "other_model")

    with hostile_upstream(lambda question: http(reply())) as upstream:
        asking = client(upstream.url, binary=False)
        asking.verify = refuse
        with pytest.raises(UpstreamError, match="another model"):
            asking.ask(X)
        assert upstream.questions == 0


def test_what_went_wrong_is_told_apart():
    kinds = {"an error": "rejected", "a server error": "rejected", "unavailable": "unready", "a redirect": "unready",
             "nothing": "unreachable", "half a body": "unreachable", "no json": "unusable"}  # fmt: skip
    for name, kind in kinds.items():
        with hostile_upstream(lambda question, name=name: ANSWERS[name]) as upstream:
            with pytest.raises(UpstreamError) as caught:
                client(upstream.url, binary=False).ask(X)
            assert (name, caught.value.kind) == (name, kind)
    with pytest.raises(UpstreamError) as caught:
        client(f"http://127.0.0.1:{free_port()}", binary=False).ask(X)
    assert caught.value.kind == "unreachable"
