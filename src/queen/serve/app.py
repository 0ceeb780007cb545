"""The server's HTTP side: the Open Inference Protocol, health, metrics, and the operator's pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queen.errors import QueenError
from queen.serve.admin.routes import admin_routes
from queen.serve.admin.static import dashboard_routes
from queen.serve.http import ONE_PACKET
from queen.serve.limits.bodies import memory_of_query, memory_to_parse, read_body
from queen.serve.limits.memory import Reservation
from queen.serve.protocol.headers import HEADER_LENGTH, addresses, read_headers
from queen.serve.protocol.inflate import inflate, inflate_little
from queen.serve.protocol.openapi import openapi
from queen.serve.protocol.rest_read import BYTES_PER_VALUE, read_query
from queen.serve.protocol.rest_write import error_body, model_metadata, server_metadata, to_json, write_answer
from queen.serve.queue.admission import MEDIUM_BYTES
from queen.serve.service import Service
from queen.serve.telemetry.log import log
from queen.serve.types import LARGE_BYTES, MANY_NUMBERS, Caller, ModelSpec, Query, ServeError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
JSON = b"application/json"
BINARY = b"application/octet-stream"


class App:
    """An ASGI application: inference requests are answered here, everything else goes through Starlette."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._starlette = _make_starlette(service)
        models = f"/v2/models/{service.spec.name}"
        self._infer_paths = {f"{models}/infer", f"{models}/versions/{service.spec.version}/infer"}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._starlette(scope, receive, send)
            return
        if scope["path"] in self._infer_paths and scope["method"] == "POST":
            await self._infer(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            read_headers(scope)
            await self._starlette(scope, receive, send_and_note)
        except ServeError as error:
            status = error.status
            await _send(scope, send, status, error_body(error.message), [(b"content-type", JSON)])
        finally:
            self._service.counter.request("rest", status, time.perf_counter() - start, is_query=False)

    async def _infer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Check the key, read the body, answer. Errors go to this client alone; every request is counted."""
        service, start = self._service, time.perf_counter()
        caller = query = reservation = None
        status, content_type, extra = 200, JSON, list[tuple[bytes, bytes]]()
        try:
            headers = read_headers(scope)
            caller = await service.key_watcher.caller(_text(headers.get(b"authorization")), *addresses(scope))
            if not service.admission.has_room(caller.client):
                await service.admission.admit(caller.client)
            reservation = service.request_memory.reserve(caller.client)
            query = await self._read(headers, receive, reservation)
            is_small = query.rows <= service.settings.max_turn
            answers = await (service.infer(query, caller) if is_small else self._answer(query, caller, receive))
            if answers.size < MANY_NUMBERS:
                body, split = write_answer(query, answers, service.spec)
            else:
                write = partial(write_answer, query, answers, service.spec)
                body, split = await service.admission.write(caller.client, write, answers.size)
            if split is not None:
                content_type, extra = BINARY, [(HEADER_LENGTH, b"%d" % split)]
        except ServeError as error:
            status, body, extra = error.status, error_body(error.message, error.rows), _error_headers(error)
        except ConnectionResetError:  # the client went away
            status, body = 499, b""
        except Exception as error:
            log("request failed", level="error", error=repr(error))
            status, body = 500, error_body("this request failed in the server")
        try:
            if status != 499:
                await _send(scope, send, status, body, [(b"content-type", content_type), *extra])
        finally:
            if reservation is not None:
                reservation.close()
            seconds = time.perf_counter() - start
            service.counter.request("rest", status, seconds, is_query=True, query=query, caller=caller)

    async def _answer(self, query: Query, caller: Caller, receive: Receive) -> NDArray[np.float32]:
        """The probabilities for a large request; what is left of it is dropped when its client goes away."""
        answers = asyncio.ensure_future(self._service.infer(query, caller))
        end = asyncio.ensure_future(_wait_for_end(receive))
        try:
            await asyncio.wait((answers, end), return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                raise ConnectionResetError
            return answers.result()
        finally:
            answers.cancel()
            end.cancel()

    async def _read(self, headers: dict[bytes, bytes], receive: Receive, reservation: Reservation) -> Query:
        """The query in a request's body; what it takes from then on is reserved."""
        body = await read_body(headers, receive, self._service.settings.max_body, reservation)
        size, length, encoding = len(body), _header_length(headers), headers.get(b"content-encoding")
        if size < MEDIUM_BYTES and not encoding:
            query = self._parse(body, length)
        else:
            bodies = [body]
            del body  # the list has the last reference: what is packed is freed as soon as it is inflated
            query = await self._read_in_turn(bodies, length, (encoding or b"").decode("latin-1"), reservation.client)
        memory = memory_of_query(query, self._service.spec)
        if memory > reservation.size or size >= LARGE_BYTES:
            await reservation.claim(memory)
        return query

    async def _read_in_turn(self, bodies: list[bytes], length: int | None, encoding: str, client: str) -> Query:
        """The query in the only one of `bodies`, which is taken out; it takes a while to parse, or nobody knows."""
        if encoding and (body := inflate_little(bodies[0], encoding, MEDIUM_BYTES)) is not None:
            bodies, encoding = [body], ""
        size, settings = len(bodies[0]), self._service.settings

        def parse() -> Query:
            body: bytes | bytearray = bodies.pop()
            if encoding:
                body = inflate(body, encoding, settings.max_body)
            return self._parse(body, length)

        memory = memory_to_parse(size, length, is_packed=bool(encoding), most=settings.parse_bytes)
        return await self._service.admission.parse(client, parse, LARGE_BYTES if encoding else size, memory)

    def _parse(self, body: bytes | bytearray, length: int | None) -> Query:
        settings = self._service.settings
        most = settings.max_body // BYTES_PER_VALUE
        return read_query(body, length, self._service.spec, max_rows=settings.max_rows, max_values=most)


async def _wait_for_end(receive: Receive) -> None:
    """Wait until the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(
    scope: MutableMapping[str, Any], send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    if send_in_one_packet := scope.get("extensions", {}).get(ONE_PACKET):
        await send_in_one_packet(status, headers, body)
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error_headers(error: ServeError) -> list[tuple[bytes, bytes]]:
    headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _header_length(headers: dict[bytes, bytes]) -> int | None:
    value = headers.get(HEADER_LENGTH)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 12:
        raise ServeError(400, "Inference-Header-Content-Length must be a number")
    return int(value)


def _make_starlette(service: Service) -> Starlette:
    """The application for everything but inference requests."""

    async def server(request: Request) -> Response:
        return _json(server_metadata(service.version))

    async def live(request: Request) -> Response:
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        return _json({"ready": service.ready}, 200 if service.ready else 503)

    async def models(request: Request) -> Response:
        await _require_key(service, request)
        return _json({"models": [{"name": service.spec.name}]})

    async def model(request: Request) -> Response:
        await _require_key(service, request)
        return _json(model_metadata(_find_model(service, request)))

    async def model_ready(request: Request) -> Response:
        spec = _find_model(service, request)
        return _json({"name": spec.name, "ready": service.ready}, 200 if service.ready else 503)

    async def infer(request: Request) -> Response:
        _find_model(service, request)  # raises, because requests for this model never come here
        raise ServeError(404, "no such page")

    async def metrics(request: Request) -> Response:
        await service.admin(request)
        body, content_type = service.metrics.render()
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    async def description(request: Request) -> Response:
        await _require_key(service, request)
        return _json(openapi(service.spec, max_rows=service.settings.max_rows))

    versions = ("", "/versions/{version}")
    routes = [
        *(Route(f"/v2{slash}", server) for slash in ("", "/")),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2/models", models),
        *(Route(f"/v2/models/{{model}}{version}", model) for version in versions),
        *(Route(f"/v2/models/{{model}}{version}/ready", model_ready) for version in versions),
        *(Route(f"/v2/models/{{model}}{version}/infer", infer, methods=["POST"]) for version in versions),
        Route("/metrics", metrics),
        Route("/openapi.json", description),
        *admin_routes(service),
        *dashboard_routes(),
    ]
    handlers = {ServeError: _serve_error, HTTPException: _http_error, QueenError: _queen_error, Exception: _crash}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


async def _require_key(service: Service, request: Request) -> None:
    """Raise `ServeError` without a valid key: names and shapes are for clients alone."""
    await service.key_watcher.caller(request.headers.get("authorization"), *addresses(request.scope))


def _find_model(service: Service, request: Request) -> ModelSpec:
    """The model that the path names, if this server has it."""
    spec, name, version = service.spec, request.path_params["model"], request.path_params.get("version")
    if name != spec.name or version not in (None, spec.version):
        wanted = name if version is None else f"{name} version {version}"
        raise ServeError(404, f"no model '{wanted[:100]}' here")
    return spec


def _json(content: object, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


async def _serve_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServeError)  # noqa: S101
    headers = {name.decode(): value.decode() for name, value in _error_headers(error)}
    return Response(error_body(error.message), error.status, headers, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    message = {404: "no such page", 405: "this page knows no such method"}.get(error.status_code, str(error.detail))
    return Response(error_body(message), error.status_code, error.headers, media_type="application/json")


async def _queen_error(request: Request, error: Exception) -> Response:
    return Response(error_body(" ".join(str(error).split())), 400, media_type="application/json")


async def _crash(request: Request, error: Exception) -> Response:
    log("request failed", level="error", error=repr(error))
    return Response(error_body("this request failed in the server"), 500, media_type="application/json")
