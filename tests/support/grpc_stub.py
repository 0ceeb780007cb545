"""A service for gRPC tests, a server of it on loopback, and requests to send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from queen.serve import grpc as served
from queen.serve.limits.memory import MemoryAccount
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.types import LARGE_BYTES, Caller, ModelSpec, Query, ServeError
from tests.support.rest_bodies import DIGITS, MAX_ROWS, pictures

KEY = (("authorization", "Bearer good"),)
PATH = f"/{served.NAME}/"
MAX_BYTES = 1 << 20
CODE = grpc.StatusCode


@dataclass
class Stub:
    """As much of the service as gRPC touches: answers with a function of the picture, and notes what it was asked."""

    spec: ModelSpec = DIGITS
    ready: bool = True
    version: str = "9.9"
    error: Exception | None = None
    seen: list[tuple[str | None, str | None, str | None]] = field(default_factory=list)
    counted: list[tuple[int, bool]] = field(default_factory=list)
    known: list[tuple[str, int]] = field(default_factory=list)  # client and rows of what was counted, as far as known
    parsed: int = 0  # requests that were parsed in a thread
    numbers: list[int] = field(default_factory=list)  # of the answers that were written
    settings: Any = field(
        default_factory=lambda: SimpleNamespace(
            max_rows=MAX_ROWS,
            request_timeout=60.0,
            tls_cert=None,
            tls_key=None,
            max_header=16384,
            max_connections=64,
            max_body=MAX_BYTES,
            parse_bytes=6 * MAX_BYTES,
        )
    )
    request_memory: MemoryAccount = field(default_factory=lambda: MemoryAccount(64 * MAX_BYTES, 16 * MAX_BYTES))
    parse_memory: MemoryAccount = field(default_factory=lambda: MemoryAccount(6 * MAX_BYTES, 6 * MAX_BYTES))

    @property
    def key_watcher(self) -> Stub:
        return self

    @property
    def counter(self) -> Stub:
        return self

    @property
    def admission(self) -> Stub:
        return self

    async def admit(self, client: str) -> None:
        assert client == "alice"

    async def caller(self, authorization: str | None, peer: str | None, forwarded: str | None) -> Caller:
        self.seen.append((authorization, peer, forwarded))
        if authorization != "Bearer good":
            raise ServeError(401, "a key is needed")
        return Caller("alice")

    async def infer(self, query: Query, caller: Caller) -> NDArray[np.float32]:
        assert caller.client == "alice"
        if self.error is not None:
            raise self.error
        assert isinstance(query.inputs, torch.Tensor)
        return answer_to(query.inputs.numpy())

    async def parse(self, client: str, read: Callable[[], Query], size: int, memory: int = 0) -> Query:
        if size < LARGE_BYTES:
            return read()
        self.parsed += 1
        return await asyncio.to_thread(read)

    async def write(self, client: str, write: Callable[[], bytes], numbers: int) -> bytes:
        self.numbers.append(numbers)
        return await asyncio.to_thread(write)

    def request(
        self, protocol: str, status: int, seconds: float, *, is_query: bool, query: Query | None, caller: Caller | None
    ) -> None:
        assert protocol == "grpc"
        assert seconds >= 0
        self.counted.append((status, is_query))
        self.known.append((caller.client if caller else "", query.rows if query else 0))


def answer_to(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities (n, 10) that depend on every pixel."""
    scores = x.reshape(len(x), 64)[:, :60].reshape(len(x), 10, 6).sum(2)
    return np.asarray(scores / scores.sum(1, keepdims=True), np.float32)


def talk(stub: Stub, client: Callable[[grpc.aio.Channel, int], Awaitable[None]]) -> None:
    """Run a client against a server of the stub."""

    async def main() -> None:
        server, port = await served.start_grpc(stub, "127.0.0.1", 0)  # type: ignore[arg-type]
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await client(channel, port)
        finally:
            await server.stop(0)

    asyncio.run(main())


def message(x: NDArray[np.float32] | None = None, **changes: Any) -> oip.ModelInferRequest:
    """A good request, raw."""
    x = pictures() if x is None else x
    part = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=x.shape)
    fields = {"model_name": "digits", "id": "7", "inputs": [part], "raw_input_contents": [x.tobytes()], **changes}
    return oip.ModelInferRequest(**fields)


def typed(datatype: str, where: str, values: Any, shape: Any = (1, 1, 8, 8), **changes: Any) -> oip.ModelInferRequest:
    """A request with its numbers in a typed field."""
    contents = oip.InferTensorContents(**{where: values})
    part = oip.ModelInferRequest.InferInputTensor(name="input", datatype=datatype, shape=shape, contents=contents)
    return message(**{"inputs": [part], "raw_input_contents": [], **changes})


def wanting(name: str = "probabilities", **parameters: Any) -> oip.ModelInferRequest:
    """A request with an output and its parameters."""
    output = oip.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        output.parameters[key].CopyFrom(value)
    return message(outputs=[output])


async def call(
    channel: grpc.aio.Channel, method: str, request: Any = b"", reply: Any = None, key: Any = KEY, **options: Any
) -> Any:
    """One call with messages as bytes, so that none but the server takes them apart."""
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    found = await channel.unary_unary(PATH + method)(raw, metadata=key, timeout=60, **options)
    return found if reply is None else reply.FromString(found)


async def refused(channel: grpc.aio.Channel, method: str, request: Any = b"", **options: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, method, request, **options)
    return caught.value
