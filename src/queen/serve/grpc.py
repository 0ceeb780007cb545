"""The server's gRPC side: `inference.GRPCInferenceService` of the Open Inference Protocol.

Every call is registered as one that takes a stream of messages, though clients send a single one (on the wire there is
no difference). So the key is checked before the body is read, and a body that trickles in has a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from queen.errors import OptionError
from queen.serve.limits.bodies import memory_of_body, memory_of_query, memory_to_parse
from queen.serve.limits.connections import address_of
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.protocol.grpc_messages import check_model, model_message, read_message, server_message, write_message
from queen.serve.protocol.rest_read import BYTES_PER_VALUE
from queen.serve.telemetry.log import log
from queen.serve.types import ServeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from queen.serve.limits.memory import Reservation
    from queen.serve.service import Service
    from queen.serve.settings import Settings
    from queen.serve.types import Caller, ModelSpec, Query

NAME = "inference.GRPCInferenceService"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
MAX_STREAMS = 256  # calls at a time on one connection; further ones wait in the client
WINDOW_BYTES = 1 << 16  # bytes of a call that gRPC takes before it is asked for them
MAX_SMALL = 4096  # bytes of a message that only names a model
STRANGER = "stranger:"  # before the address of who has no valid key, in the account of bytes
STRANGERS_HASTE = 32  # times as fast as others they must send their messages, which are small
IDLE = 30.0  # seconds after which a connection without calls is closed; clients open a new one by themselves


@dataclass
class GrpcCall:
    """A call that is being answered, and its caller and query as far as they are known."""

    requests: AsyncIterator[bytes]
    context: Any
    caller: Caller | None = None
    query: Query | None = None


Method = Callable[[GrpcCall], Awaitable[bytes]]


async def start_grpc(service: Service, host: str, port: int) -> tuple[grpc.aio.Server, int]:
    """Start a server; also returns its port, for `port` 0 means any free one."""
    settings = service.settings
    server = grpc.aio.server(
        handlers=[_handlers(service)],
        options=_options(settings),
        maximum_concurrent_rpcs=settings.max_connections,
    )
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = _listen(server, address, settings)
    except (RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise OptionError(f"cannot serve gRPC on {address}: {why}; choose another --grpc-port") from error
    await server.start()
    return server, bound


def _listen(server: grpc.aio.Server, address: str, settings: Settings) -> int:
    if settings.tls_cert is None or settings.tls_key is None:
        return int(server.add_insecure_port(address))
    pair = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
    return int(server.add_secure_port(address, grpc.ssl_server_credentials([pair])))


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: gRPC inflates a message before it checks its size
        ("grpc.max_metadata_size", settings.max_header),
        ("grpc.absolute_max_metadata_size", settings.max_header),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),  # else the window would grow with the speed of the connection
        ("grpc.server_handshake_timeout_ms", int(1000 * settings.request_timeout)),
        ("grpc.http2.settings_timeout", int(1000 * settings.request_timeout)),  # the limits hold once they are accepted
        ("grpc.keepalive_time_ms", 60_000),  # a peer that vanished is noticed
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),  # and one that pings all the time is cut off
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.so_reuseport", 0),  # else two servers on one port would silently share its calls
    ]


def _handlers(service: Service) -> Any:
    """The service's methods; gRPC itself answers UNIMPLEMENTED to all others."""

    async def live(call: GrpcCall) -> bytes:
        return _encode(oip.ServerLiveResponse(live=True))

    async def ready(call: GrpcCall) -> bytes:
        return _encode(oip.ServerReadyResponse(ready=service.ready))

    async def server_metadata(call: GrpcCall) -> bytes:
        return _encode(server_message(service.version))

    async def model_ready(call: GrpcCall) -> bytes:
        client, seconds = await _find_client(service, call.context), service.settings.request_timeout
        with service.request_memory.reserve(client) as reservation:
            is_stranger = client.startswith(STRANGER)
            raw = await _read(call, service, reservation, seconds / STRANGERS_HASTE if is_stranger else seconds)
        request = _parse(oip.ModelReadyRequest, raw)
        check_model(service.spec, request.name, request.version)
        return _encode(oip.ModelReadyResponse(ready=service.ready))

    async def model_metadata(call: GrpcCall) -> bytes:
        caller = await _caller(service, call.context)
        with service.request_memory.reserve(caller.client) as reservation:
            request = _parse(oip.ModelMetadataRequest, await _read(call, service, reservation))
        check_model(service.spec, request.name, request.version)
        return _encode(model_message(service.spec))

    async def infer(call: GrpcCall) -> bytes:
        call.caller = await _caller(service, call.context)
        await service.admission.admit(call.caller.client)
        reservation = service.request_memory.reserve(call.caller.client)
        try:
            raw = await _read(call, service, reservation)
        except BaseException:
            reservation.close()
            raise
        # a client that goes away frees nothing yet: what it has sent is still parsed, or waits for the model
        answer = asyncio.ensure_future(_answer(call, raw, reservation, service))
        answer.add_done_callback(_read_error)
        return await asyncio.shield(answer)

    methods: dict[str, Method] = {
        "ServerLive": live,
        "ServerReady": ready,
        "ServerMetadata": server_metadata,
        "ModelReady": model_ready,
        "ModelMetadata": model_metadata,
        "ModelInfer": infer,
    }
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(_make_handler(service, name, method))
        for name, method in methods.items()
    }
    return grpc.method_handlers_generic_handler(NAME, handlers)


def _make_handler(
    service: Service, name: str, method: Method
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
    """gRPC's handler of a method: it turns errors into status codes, and counts every call."""

    async def answer(requests: AsyncIterator[bytes], context: Any) -> bytes:
        start, status, call = time.perf_counter(), 499, GrpcCall(requests, context)  # 499: the client went away
        try:
            reply = await method(call)
            status = 200
            return reply
        except ServeError as error:
            status = error.status
            trailing = [] if error.retry_after is None else [("retry-after", str(error.retry_after))]
            if error.rows:
                trailing.append(("refused-rows", ",".join(map(str, error.rows))))
            code = CODES.get(status, grpc.StatusCode.INTERNAL if status >= 500 else grpc.StatusCode.INVALID_ARGUMENT)
            return cast("bytes", await context.abort(code, error.message, tuple(trailing)))  # which raises
        except Exception as error:
            status = 500
            log("call failed", level="error", method=name, error=repr(error))
            return cast("bytes", await context.abort(grpc.StatusCode.INTERNAL, "this request failed in the server"))
        finally:
            seconds, is_query = time.perf_counter() - start, name == "ModelInfer"
            service.counter.request("grpc", status, seconds, is_query=is_query, query=call.query, caller=call.caller)

    return answer


async def _answer(call: GrpcCall, raw: bytes, reservation: Reservation, service: Service) -> bytes:
    """The answer to an inference request; the memory that is reserved for it is given back at the end."""
    caller, settings, spec = cast("Caller", call.caller), service.settings, service.spec
    with reservation:
        limits = {"max_rows": settings.max_rows, "max_values": settings.max_body // BYTES_PER_VALUE}
        parse = partial(read_message, raw, spec, **limits)
        memory = memory_to_parse(len(raw), None, is_packed=False, most=settings.parse_bytes)
        query = call.query = await service.admission.parse(caller.client, parse, len(raw), memory)
        await reservation.claim(WINDOW_BYTES + len(raw) + memory_of_query(query, spec))  # gRPC holds the message
        answers = await service.infer(query, caller)
        return await service.admission.write(caller.client, partial(_write, query, answers, spec), answers.size)


def _write(query: Query, answers: NDArray[np.float32], spec: ModelSpec) -> bytes:
    return _encode(write_message(query, answers, spec))


def _read_error(answer: asyncio.Future[Any]) -> None:
    """Take note of an error, or asyncio would write a traceback of it where the client has gone away."""
    if not answer.cancelled():
        answer.exception()


async def _caller(service: Service, context: Any) -> Caller:
    metadata, limit = tuple(context.invocation_metadata() or ()), service.settings.max_header
    size = sum(len(name) + len(value) + 4 for name, value in metadata)
    if size > limit:  # gRPC allows more before it has said so
        raise ServeError(413, f"the head of a call may have {limit} bytes")
    if sum(name == "authorization" for name, _ in metadata) > 1:  # else it would be chance whose key counts
        raise ServeError(400, "expected one authorization in the metadata, got several")
    headers = dict(metadata)  # gRPC itself keeps only the last x-forwarded-for, which is that of the nearest proxy
    authorization, forwarded = headers.get("authorization"), headers.get("x-forwarded-for")
    if forwarded is None and ("forwarded" in headers or "via" in headers):  # a proxy that does not say for whom
        forwarded = ""
    return await service.key_watcher.caller(authorization, peer_host(context.peer()), forwarded)


async def _find_client(service: Service, context: Any) -> str:
    """The client that calls, for the account of its bytes; all at one address who have no valid key are one."""
    stranger = STRANGER + address_of(peer_host(context.peer()))
    if "authorization" not in dict(context.invocation_metadata() or ()):
        return stranger
    try:
        return (await _caller(service, context)).client
    except ServeError:
        return stranger


def peer_host(peer: str) -> str | None:
    """The address of a peer, which gRPC names like `ipv4:127.0.0.1:1234` or `ipv6:%5B::1%5D:1234`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return unquote(rest).rpartition(":")[0].strip("[]") or None


async def _read(call: GrpcCall, service: Service, reservation: Reservation, limit: float | None = None) -> bytes:
    """The only message of a call; it must arrive within the time that a request may take, or `limit` seconds.

    gRPC does not say how large it is, and takes all of it once it is asked: so the largest one is reserved meanwhile.
    Messages of one client that find no room wait, up to `WINDOW_BYTES` of each in the server, the rest in the client;
    that wait is part of the time. All the while the call may have to leave for a client that has less.
    """
    limit, account = limit or service.settings.request_timeout, service.request_memory
    largest = min(WINDOW_BYTES + memory_of_body(service.settings.max_body), account.largest)
    has_share, has_room = account.has_share(reservation.client, largest - reservation.size), False
    try:
        async with asyncio.timeout(limit) as deadline:
            with reservation.arriving(lambda: deadline.reschedule(0)):
                await reservation.claim(WINDOW_BYTES)
                await reservation.grow(largest)
                has_room = True
                raw = await anext(call.requests)
    except (TimeoutError, StopAsyncIteration):  # gRPC may also end the stream when the time is up
        reservation.check()
        if not deadline.expired():
            raise ServeError(400, "expected a message, got none, or one beyond the limits") from None
        if has_room:
            raise ServeError(408, f"the request did not arrive within {limit:g} s") from None
        if has_share:
            account.refuse(reservation.client)
        raise ServeError(408, f"other messages of this client were in front of this one for {limit:g} s") from None
    reservation.resize(WINDOW_BYTES + memory_of_body(len(raw)))
    return raw


def _encode(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _parse(kind: Any, raw: bytes) -> Any:
    try:
        if len(raw) > MAX_SMALL:
            raise ServeError(413, f"expected a {kind.DESCRIPTOR.name} of at most {MAX_SMALL} bytes, got {len(raw)}")
        return kind.FromString(raw)
    except DecodeError:
        raise ServeError(400, f"the message is not a {kind.DESCRIPTOR.name}") from None
