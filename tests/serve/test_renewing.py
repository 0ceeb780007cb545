"""Budgets that renew, over the wire: both protocols say when to come back, and then there is an answer."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from queen.serve.access.key_store import FileKeys
from queen.serve.grpc import NAME
from queen.serve.protocol import oip_pb2 as oip
from tests.support.http import head, talk
from tests.support.server import running_service
from tests.support.serving import digits, inference_body
from tests.support.times import MIDNIGHT, SetTime

NOON = MIDNIGHT + 43_200
DAILY = {"threshold": "0.01/day", "extra_answers": "5/day"}


def message_of(rows) -> bytes:
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=list(rows.shape))
    request = oip.ModelInferRequest(model_name="digits", inputs=[tensor], raw_input_contents=[rows.numpy().tobytes()])
    return request.SerializeToString()


def test_refused_rows_are_answered_after_the_seconds_that_both_protocols_say(tmp_path):
    key, clock = FileKeys(tmp_path).add("alice")[0], SetTime(NOON)
    rows = digits()[40:60]

    async def ask_rest(port: int, some) -> tuple[int, dict[str, str], bytes]:
        body = inference_body(some)
        return await talk(port, head(key, len(body)) + body)

    async def ask() -> None:
        async with running_service(tmp_path, **DAILY, max_turn=7, grpc_port=0) as (service, ports):
            service.guard.ledger._clock = clock
            await ask_rest(ports.rest, digits()[:40])
            status, headers, body = await ask_rest(ports.rest, rows)
            assert (status, headers["retry-after"]) == (429, "43200")
            assert "it renews at 2026-11-19 00:00 UTC" in json.loads(body)["error"]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
                infer = channel.unary_unary(f"/{NAME}/ModelInfer")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await infer(message_of(rows), metadata=(("authorization", f"Bearer {key}"),))
                assert dict(refused.value.trailing_metadata())["retry-after"] == "43200"
            clock.set(NOON + 43_200)
            assert (await ask_rest(ports.rest, rows[:1]))[0] == 200

    asyncio.run(ask())


def test_without_a_budget_that_renews_there_is_no_time_to_come_back(tmp_path):
    key = FileKeys(tmp_path).add("alice")[0]

    async def ask() -> None:
        async with running_service(tmp_path, threshold=0.0, extra_answers="5/day") as (_, ports):
            body = inference_body(digits()[:60])
            status, headers, said = await talk(ports.rest, head(key, len(body)) + body)
            assert status == 429
            assert "retry-after" not in headers
            assert "not all of it renews by itself" in json.loads(said)["error"]

    asyncio.run(ask())
