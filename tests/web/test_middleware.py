"""The middleware around Starlette and around a bare ASGI application."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio.to_thread
import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from queen.ledger import open_ledger
from queen.web import EXCEPTION_HANDLERS, GuardMiddleware, NoAnswerError
from tests.support.serving import digits, noise, small_bundle, small_guard
from tests.support.waiting import PATIENCE
from tests.support.web_app import OWNERS, by_key, post


async def predict(request: Request) -> Response:
    reply = await request.state.ask(torch.tensor(await request.json()))
    return JSONResponse(reply.probabilities.tolist())


def waiting(request: Request) -> Response:
    return JSONResponse(request.state.ask.now(digits()[:1]).probabilities.tolist())


async def stream(request: Request) -> Response:
    """A line for every image, each asked about when its turn comes."""
    images = torch.tensor(await request.json())

    async def lines() -> AsyncIterator[str]:
        for image in images:
            yield f"{(await request.state.ask(image[None])).probabilities.argmax()}\n"

    return StreamingResponse(lines())


async def health(request: Request) -> Response:
    return Response("well")


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    while True:
        reply = await socket.state.ask(torch.tensor(await socket.receive_json()))
        await socket.send_json(reply.probabilities.tolist())


async def ask_first(socket: WebSocket) -> None:
    await socket.state.ask.client()
    await socket.accept()


ROUTES = [
    Route("/predict", predict, methods=["POST"]),
    Route("/waiting", waiting, methods=["POST"]),
    Route("/stream", stream, methods=["POST"]),
    Route("/health", health),
    WebSocketRoute("/talk", talk),
    WebSocketRoute("/ask_first", ask_first),
]


@contextmanager
def running(guard: Any = None, **options: Any) -> Iterator[TestClient]:
    given = {"guard": small_guard() if guard is None else guard, "client": by_key, **options}
    app = Starlette(routes=ROUTES, middleware=[Middleware(GuardMiddleware, **given)])
    with TestClient(app, raise_server_exceptions=False) as http:
        yield http


def test_an_endpoint_asks_with_what_is_in_the_state_of_its_request():
    guard = small_guard()
    with running(guard) as http:
        response = post(http, digits()[:3])
        assert response.status_code == 200
        assert len(response.json()) == 3
        assert post(http, digits()[:1], path="/waiting").status_code == 200
    assert guard.ledger.standing("alice").queries == 4


def test_nobody_is_needed_for_pages_that_ask_nothing_and_gets_no_answer():
    guard = small_guard()
    with running(guard) as http:
        assert http.get("/health").text == "well"
        for path in ("/predict", "/waiting"):
            response = post(http, digits()[:1], None, path)
            assert response.status_code == 401
            assert response.headers["content-type"] == "application/json"
            assert response.json() == {"error": "no answer: this request does not say whose it is"}
    assert list(guard.ledger.clients()) == []


def test_refusals_and_mistakes_have_the_statuses_and_bodies_of_the_dependency():
    with running() as http:
        response = post(http, noise(), "m")
        assert response.status_code == 403
        assert response.json().keys() == {"error", "rows"}
        assert post(http, torch.zeros(1, 2)).status_code == 422
        assert post(http, digits()[:1]).status_code == 200


def test_a_client_cannot_bring_an_ask_or_a_name_of_its_own():
    guard = small_guard()
    with running(guard) as http:
        post(http, digits()[:1], "m", ask="alice", client="alice", **{"x-forwarded-user": "alice", "state": "alice"})
    assert list(guard.ledger.clients()) == ["mallory"]


def test_a_stream_that_has_begun_breaks_off_where_the_client_is_accused():
    guard = small_guard()
    with running(guard) as http:
        response = post(http, noise(60), "m", "/stream")
        lines = response.text.splitlines()
        assert 0 < len(lines) < 60
        assert guard.ledger.standing("mallory").queries == len(lines) + 1
        assert post(http, noise(60, seed=1), "m", "/stream").text == ""


def test_a_websocket_is_closed_where_there_is_no_answer():
    with running() as http:
        with pytest.raises(WebSocketDisconnect) as refused, http.websocket_connect("/ask_first"):
            pass
        assert refused.value.code == 1008
        with http.websocket_connect("/talk", headers={"authorization": "Bearer m"}) as socket:
            socket.send_json(digits()[:1].tolist())
            assert len(socket.receive_json()) == 1
            socket.send_json(noise().tolist())
            with pytest.raises(WebSocketDisconnect) as refused:
                socket.receive_json()
        assert refused.value.code == 1008
        assert "stands accused" in refused.value.reason


def test_the_guard_lives_as_long_as_the_application(tmp_path):
    seen = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        seen.append("begins")
        yield {"mine": "kept"}
        seen.append("ends")

    async def mine(request: Request) -> Response:
        return Response(request.state.mine)

    closed = []

    def ledger():
        opened = open_ledger(tmp_path / "clients.sqlite")
        close = opened.close
        opened.close = lambda: (closed.append(list(seen)), close())
        return opened

    routes = [*ROUTES, Route("/mine", mine)]
    guarding = Middleware(GuardMiddleware, guard=small_bundle(), ledger=ledger, client=by_key)
    app = Starlette(routes=routes, middleware=[guarding], lifespan=lifespan)
    for number in (1, 2):  # an application may be started again
        with TestClient(app) as http:
            assert http.get("/mine").text == "kept"
            assert post(http, digits()[:1]).status_code == 200
        assert len(closed) == number
    assert closed[0] == ["begins", "ends"]


def test_an_application_does_not_start_with_a_guard_that_cannot_be_opened(tmp_path):
    app = GuardMiddleware(Starlette(), tmp_path / "nothing", ledger=tmp_path / "clients.sqlite", client=by_key)
    sent = []

    async def start() -> None:
        async def receive() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "lifespan"}, receive, send)

    asyncio.run(start())
    [message] = sent
    assert message["type"] == "lifespan.startup.failed"
    assert "no bundle at" in message["message"]


def test_without_a_lifespan_a_guard_that_cannot_be_opened_answers_nobody_and_says_why_in_the_log(tmp_path, caplog):
    guarding = Middleware(GuardMiddleware, guard=tmp_path / "nothing", ledger=tmp_path / "c.sqlite", client=by_key)
    http = TestClient(Starlette(routes=ROUTES, middleware=[guarding]))
    response = post(http, digits()[:1])
    assert response.status_code == 503
    assert str(tmp_path) not in response.text
    assert "no bundle at" in caplog.text


def test_any_asgi_application_will_do():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "other":
            return
        body = (await receive())["body"]
        reply = await scope["state"]["ask"](torch.tensor(json.loads(body)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(reply.probabilities)).encode()})

    guarding = GuardMiddleware(app, small_guard(), client=by_key)
    http = TestClient(guarding)
    assert post(http, digits()[:2]).text == "2"
    assert post(http, digits()[:2], None).status_code == 401
    asyncio.run(guarding({"type": "other"}, None, None))


def test_an_answer_that_was_begun_is_not_begun_again():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await scope["state"]["ask"](digits()[:1])

    with pytest.raises(NoAnswerError):
        post(TestClient(GuardMiddleware(app, small_guard(), client=by_key)), digits()[:1], None)


def test_strangers_who_wait_for_their_lookup_leave_threads_to_others():
    async def look_up(connection: HTTPConnection) -> str | None:
        await run_in_threadpool(time.sleep, 0.05)
        return OWNERS.get(connection.headers["authorization"].removeprefix("Bearer "))

    app = Starlette(routes=ROUTES, middleware=[Middleware(GuardMiddleware, guard=small_guard(), client=look_up)])

    async def ask(http: httpx.AsyncClient, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return (await http.post("/waiting", headers=headers)).status_code

    async def ask_all() -> tuple[list[int], int]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 2
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as http:
            strangers = await asyncio.wait_for(asyncio.gather(*(ask(http, "x") for _ in range(12))), PATIENCE)
            return strangers, await asyncio.wait_for(ask(http, "a"), PATIENCE)

    assert asyncio.run(ask_all()) == ([401] * 12, 200)


def test_a_client_that_is_known_only_later_is_found_when_something_is_asked():
    def by_state(connection: HTTPConnection) -> str | None:
        return getattr(connection.state, "user", None)

    async def sign_in(request: Request) -> Response:
        request.state.user = "alice"
        return await predict(request)

    guard = small_guard()
    routes = [Route("/predict", sign_in, methods=["POST"])]
    guarding = Middleware(GuardMiddleware, guard=guard, client=by_state)
    assert post(TestClient(Starlette(routes=routes, middleware=[guarding])), digits()[:1], None).status_code == 200
    assert list(guard.ledger.clients()) == ["alice"]


def test_requests_do_not_share_what_they_ask_with_even_if_the_server_shares_their_state():
    asks = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asks.append(scope["state"]["ask"])

    state: dict[str, Any] = {"mine": 1}
    guarding = GuardMiddleware(app, small_guard(), client=by_key)
    for key in (b"a", b"m"):
        scope = {"type": "http", "headers": [(b"authorization", b"Bearer " + key)], "state": state}
        asyncio.run(guarding(scope, None, None))
    assert [asyncio.run(ask.client()).name for ask in asks] == ["alice", "mallory"]
    assert state == {"mine": 1}


def test_a_mounted_application_needs_the_handlers_to_tell_why_there_is_no_answer():
    below = Starlette(routes=ROUTES, exception_handlers=EXCEPTION_HANDLERS)
    guarding = Middleware(GuardMiddleware, guard=small_guard(), client=by_key)
    http = TestClient(Starlette(routes=[Mount("/below", below)], middleware=[guarding]))
    response = post(http, digits()[:1], None, "/below/predict")
    assert response.status_code == 401
    assert response.json() == {"error": "no answer: this request does not say whose it is"}


def test_whatever_stops_the_guard_from_opening_stops_the_application_from_starting():
    def broken() -> None:
        raise ZeroDivisionError("no ledger today")

    sent = []

    async def start() -> None:
        async def receive() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await GuardMiddleware(Starlette(), small_bundle(), ledger=broken, client=by_key)(
            {"type": "lifespan"}, receive, send
        )

    asyncio.run(start())
    assert sent == [{"type": "lifespan.startup.failed", "message": "ZeroDivisionError: no ledger today"}]
