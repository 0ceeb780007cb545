"""Honest answers and decoys on the wire: the same status, headers, keys, length and number format in every protocol."""

from __future__ import annotations

import asyncio
import json
import re

import grpc
import numpy as np
import pytest
from torch import Tensor

from queen.serve.access.key_store import FileKeys
from queen.serve.grpc import NAME
from queen.serve.protocol import oip_pb2 as oip
from tests.support.http import Answer, head, talk
from tests.support.server import running_service
from tests.support.serving import digits, honest, noise

NUMBER = rb"[01]\.\d{3}"
FORMS = {
    "json": {},
    "binary": {"parameters": {"binary_data": True}},
    "classification": {"parameters": {"classification": 3}},
    "binary classification": {"parameters": {"classification": 3, "binary_data": True}},
}


def request(x: Tensor, **output: object) -> bytes:
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.flatten().tolist()}
    return json.dumps({"inputs": [tensor], "outputs": [{"name": "probabilities", **output}]}).encode()


def message(x: Tensor) -> bytes:
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=list(x.shape))
    found = oip.ModelInferRequest(model_name="digits", inputs=[tensor], raw_input_contents=[x.numpy().tobytes()])
    return found.SerializeToString()


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, tuple[list, list]]:
    """Per protocol, replies to the same questions of a benign client and of an accused one."""
    home = tmp_path_factory.mktemp("answers")
    keys = [FileKeys(home).add(name)[0] for name in ("benign", "accused")]
    found: dict[str, tuple[list, list]] = {name: ([], []) for name in (*FORMS, "grpc")}

    async def ask() -> None:
        async with running_service(home, on_alarm="decoy", digits=3, grpc_port=0) as (service, ports):
            body = request(noise(150))
            assert (await talk(ports.rest, head(keys[1], len(body)) + body))[0] == 200
            assert service.guard.ledger.standing("accused").alarmed
            async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
                infer = channel.unary_unary(f"/{NAME}/ModelInfer")
                for who, key in enumerate(keys):
                    for x in digits()[:12].split(1):
                        for name, output in FORMS.items():
                            body = request(x, **output)
                            found[name][who].append(await talk(ports.rest, head(key, len(body)) + body))
                        metadata = (("authorization", f"Bearer {key}"),)
                        found["grpc"][who].append(await infer(message(x), metadata=metadata))

    asyncio.run(ask())
    return found


def form(reply: Answer | bytes) -> tuple[object, ...]:
    """All of a reply but its numbers and the time of day."""
    if isinstance(reply, bytes):
        parsed = oip.ModelInferResponse.FromString(reply)
        raw = parsed.raw_output_contents.pop()
        return len(reply), len(raw), parsed.SerializeToString()
    status, headers, body = reply
    known = {name: value for name, value in headers.items() if name not in ("date", "x-request-id")}
    split = int(headers.get("inference-header-content-length", len(body)))
    numbers = re.sub(NUMBER + rb"(:\d)?", b"N", body[:split])
    return status, tuple(sorted(known.items())), numbers, len(body)


def vectors(replies: list, name: str) -> np.ndarray:
    """The answers in replies without classification."""
    if name == "json":
        return np.array([json.loads(body)["outputs"][0]["data"] for _, _, body in replies], np.float32)
    raw = [
        oip.ModelInferResponse.FromString(reply).raw_output_contents[0]
        if name == "grpc"
        else reply[2][int(reply[1]["inference-header-content-length"]) :]
        for reply in replies
    ]
    return np.stack([np.frombuffer(one, "<f4") for one in raw])


@pytest.mark.parametrize("name", [*FORMS, "grpc"])
def test_a_decoy_has_the_form_of_an_honest_answer(answers, name):
    benign, accused = answers[name]
    assert len({form(reply) for reply in benign + accused}) == 1
    assert benign != accused


@pytest.mark.parametrize("name", ["json", "binary", "grpc"])
def test_honest_answers_and_decoys_are_thousandths_that_add_up_to_one(answers, name):
    benign, accused = (vectors(replies, name) for replies in answers[name])
    for found in (benign, accused):
        thousandths = np.rint(1000 * found.astype(float)).astype(int)
        assert np.array_equal(found, (thousandths / 1000).astype(np.float32))
        assert (thousandths.sum(1) == 1000).all()
    true = honest(digits()[:12]).numpy()
    assert np.abs(benign - true).max() < 2e-3
    assert np.array_equal(benign.argmax(1), true.argmax(1))
    assert np.abs(accused - true).max() > 0.5


def test_numbers_are_short_and_the_same_in_every_protocol(answers):
    for who in (0, 1):
        assert np.array_equal(vectors(answers["json"][who], "json"), vectors(answers["binary"][who], "binary"))
        assert np.array_equal(vectors(answers["json"][who], "json"), vectors(answers["grpc"][who], "grpc"))
    data = re.search(rb'"data":\[(.*?)\]', answers["json"][0][0][2])
    assert data is not None
    assert all(re.fullmatch(NUMBER, number) for number in data[1].split(b","))
