"""A FastAPI application with a guarded endpoint: what every kind of request gets, and what stays on record."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
import torch
from fastapi import Depends, FastAPI, HTTPException
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from queen import load
from queen.errors import CalibrationError, ProtectionWarning
from queen.ledger import MemoryLedger, SqliteLedger
from queen.options import Group, Limits, Sentinel
from queen.sentinel import power
from queen.web import Ask, Client, guarded
from tests.support.serving import WIDE, digits, honest, noise, small_bundle, small_guard
from tests.support.times import MIDNIGHT, SetTime
from tests.support.waiting import wait_for
from tests.support.web_app import by_key, make_app, post

NOON = MIDNIGHT + 43_200


@contextmanager
def running(guard: Any = None, *, client=by_key, plain: bool = False, **options: Any) -> Iterator[TestClient]:
    """An application, around a small guard in memory unless another one is given."""
    app = make_app(guarded(small_guard() if guard is None else guard, client=client, **options), plain=plain)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield http


def test_clients_get_the_guards_answers_to_tensors_and_arrays_whether_the_endpoint_waits_or_not():
    guard = small_guard()
    with running(guard) as http:
        for path in ("/predict", "/arrays", "/waiting"):
            response = post(http, digits()[:5], path=path)
            assert response.status_code == 200, response.text
            assert torch.allclose(torch.tensor(response.json()), honest(digits()[:5]))
    assert guard.ledger.standing("alice").queries == 15


@pytest.mark.parametrize("plain", [False, True])
def test_who_does_not_say_who_he_is_gets_no_answer_and_leaves_no_record(plain):
    guard = small_guard()
    with running(guard, plain=plain) as http:
        for key in (None, "", "wrong"):
            response = post(http, digits()[:1], key)
            assert response.status_code == 401
            assert response.json() == {
                "detail" if plain else "error": "no answer: this request does not say whose it is"
            }
    assert list(guard.ledger.clients()) == []


@pytest.mark.parametrize("plain", [False, True])
def test_a_thief_is_refused_with_403_and_others_are_not(plain):
    with running(plain=plain) as http:
        response = post(http, noise(), "m")
        assert response.status_code == 403
        assert "stands accused" in response.json()["detail" if plain else "error"]
        assert "retry-after" not in response.headers
        if not plain:
            rows = response.json()["rows"]
            assert 0 < rows[0] < 50
            assert len(rows) == 100
        assert post(http, digits()[:1], "m").status_code == 403
        assert post(http, digits()[:1]).status_code == 200


@pytest.mark.parametrize("plain", [False, True])
def test_a_spent_budget_is_429_with_the_seconds_until_it_renews_and_not_later(plain):
    clock = SetTime(NOON)
    guard = small_guard(limits=Limits(threshold="0.01/day", extra_answers="5/day"))
    guard.ledger = MemoryLedger(clock=clock)
    with running(guard, plain=plain) as http:
        post(http, digits()[:40])
        response = post(http, digits()[40:60])
        assert response.status_code == 429
        assert response.headers["retry-after"] == "43200"
        assert "it renews at 2026-11-19 00:00 UTC" in response.text
        clock.set(NOON + 43_199)
        assert post(http, digits()[60:61]).headers["retry-after"] == "1"
        clock.set(NOON + 43_200)
        assert post(http, digits()[60:61]).status_code == 200


def test_a_budget_that_does_not_renew_is_429_without_a_time():
    with running(small_guard(limits=Limits(threshold=0.0, extra_answers=2))) as http:
        response = post(http, digits()[:40])
        assert response.status_code == 429
        assert "retry-after" not in response.headers
        assert "it does not renew by itself" in response.json()["error"]


def test_an_accusation_that_is_not_told_openly_is_not_read_from_the_status():
    with running(small_guard(sentinel=Sentinel(on_alarm="decoy", after_alarm=20))) as http:
        response = post(http, noise(), "m")
        assert response.status_code == 429
        assert "accused" not in response.text


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 8, 8), "expected x of shape"),
        (torch.zeros(0, 1, 8, 8), "expected x"),
        (torch.full((1, 1, 8, 8), 9.0), "expected x from 0 to 1"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.int64), "expected x of type torch.float32"),
    ],
)
def test_bad_input_is_422_and_leaves_no_record(x, message):
    guard = small_guard()
    with running(guard) as http:
        response = post(http, x)
    assert response.status_code == 422
    assert message in response.json()["error"]
    assert list(guard.ledger.clients()) == []


def test_numbers_that_are_none_are_422():
    with running() as http:
        content = f"[[{[[float('nan')] * 8] * 8}]]".replace("nan", "NaN")
        response = http.post("/predict", content=content, headers={"authorization": "Bearer a"})
    assert response.status_code == 422
    assert "NaN or infinity" in response.json()["error"]


def test_what_is_asked_stays_on_record_when_the_endpoint_fails_afterwards():
    guard = small_guard()
    with running(guard) as http:
        for _ in range(3):
            assert post(http, digits()[:2], path="/failing").status_code == 500
    assert guard.ledger.standing("alice").queries == 6


def test_a_locked_ledger_is_503_for_everybody_until_it_is_free(tmp_path, caplog):
    path = tmp_path / "clients.sqlite"
    with running(small_bundle(), ledger=lambda: SqliteLedger(path, timeout=0.05)) as http:
        assert post(http, digits()[:1]).status_code == 200
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = post(http, digits()[:1])
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json() == {"error": "no answer: this request cannot be recorded now; try again"}
        assert "database is locked" in caplog.text
        other.execute("ROLLBACK")
        other.close()
        assert post(http, digits()[:1]).status_code == 200
    with closing(SqliteLedger(path)) as ledger:
        assert ledger.standing("alice").queries == 2


def test_a_ledger_that_another_bundle_has_taken_over_answers_nobody(tmp_path):
    path = tmp_path / "clients.sqlite"
    dependency = guarded(small_bundle(), ledger=path, client=by_key)
    with TestClient(make_app(dependency)) as http:
        assert post(http, digits()[:1]).status_code == 200
        with closing(SqliteLedger(path)) as other:
            other.rebind('{"identity": "another"}', "boss", name="another", forget_coverage=True)
        dependency._guard._opened.checked = 0.0  # as if half a second had passed
        assert post(http, digits()[:1]).status_code == 503
        assert post(http, digits()[:1]).status_code == 503


def test_groups_count_and_one_without_limits_is_answered_by_nobody(caplog):
    limits = {"tenant": Group(limits=Limits(threshold=0.0, extra_answers=3))}
    guard = small_guard(sentinel=Sentinel(groups=limits), limits=WIDE)

    def hook(connection: HTTPConnection) -> Client:
        return Client(connection.headers["x-user"], (connection.headers["x-group"],))

    with running(guard, client=hook) as http:
        answered = [post(http, digits()[i : i + 1], **{"x-user": f"u{i}", "x-group": "tenant:7"}) for i in range(30)]
        assert answered[0].status_code == 200
        assert answered[-1].status_code == 429
        assert "shares with its group" in answered[-1].json()["error"]
        response = post(http, digits()[:1], **{"x-user": "eve", "x-group": "team:7"})
    assert response.status_code == 503
    assert "team" not in response.text
    assert "no limits for group 'team:7'" in caplog.text


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("the database is away"), 500), (HTTPException(418), 418)])
def test_a_hook_that_raises_gets_no_answer_for_anybody(error, status):
    guard = small_guard()

    def hook(connection: HTTPConnection) -> str:
        raise error

    with running(guard, client=hook) as http:
        response = post(http, digits()[:1])
    assert response.status_code == status
    assert "database" not in response.text
    assert list(guard.ledger.clients()) == []


def test_endpoints_that_are_async_are_told_not_to_wait():
    guard = guarded(small_guard(), client=by_key)
    app, asking = FastAPI(lifespan=guard.lifespan), Depends(guard)

    @app.post("/predict")
    async def predict(ask: Ask = asking) -> None:
        ask.now(digits()[:1])

    with TestClient(app) as http, pytest.raises(RuntimeError, match=r"use `await ask\(x\)`"):
        post(http, digits()[:1])


def test_lists_are_the_applications_mistake():
    guard = guarded(small_guard(), client=by_key)
    app, asking = FastAPI(lifespan=guard.lifespan), Depends(guard)

    @app.post("/predict")
    async def predict(x: list[Any], ask: Ask = asking) -> None:
        await ask(x)

    with (
        TestClient(app) as http,
        pytest.raises(TypeError, match="expected a tensor or an array to ask about, got list"),
    ):
        post(http, digits()[:1])


def test_requests_of_one_client_at_the_same_time_are_all_counted(tmp_path):
    dependency = guarded(small_bundle(), ledger=tmp_path / "clients.sqlite", client=by_key)
    app = make_app(dependency)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            headers = {"authorization": "Bearer a"}
            sent = [http.post("/predict", json=digits()[i : i + 2].tolist(), headers=headers) for i in range(20)]
            return [response.status_code for response in await asyncio.gather(*sent)]

    assert asyncio.run(ask()) == [200] * 20  # without a lifespan: opened by the first of them
    assert dependency.open().ledger.standing("alice").queries == 40
    dependency.close()


def test_the_event_loop_is_free_while_the_model_runs_and_what_is_cancelled_stays_on_record(monkeypatch):
    guard = small_guard()
    begun, go_on, answer = threading.Event(), threading.Event(), type(guard).answer

    def slowly(self, x, **who):
        begun.set()
        go_on.wait()
        return answer(self, x, **who)

    monkeypatch.setattr(type(guard), "answer", slowly)
    app = make_app(guarded(guard, client=by_key))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as http:
            body, headers = digits()[:3].tolist(), {"authorization": "Bearer a"}
            task = asyncio.create_task(http.post("/predict", json=body, headers=headers))
            await asyncio.to_thread(begun.wait)
            assert (await http.get("/health")).json() == "well"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

    asyncio.run(ask())
    wait_for(lambda: guard.ledger.standing("alice").queries == 3)


def test_a_weak_sentinel_is_refused_unless_it_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(power, "LONGEST", 60)
    small_guard(sentinel=Sentinel(margin=10)).save(tmp_path / "weak")
    given: dict[str, Any] = {"ledger": tmp_path / "clients.sqlite", "client": by_key}
    with pytest.raises(CalibrationError, match=r"catches 0% .*weak=True"):
        guarded(tmp_path / "weak", **given).open()
    with pytest.warns(ProtectionWarning, match="catches 0%"):
        guarded(tmp_path / "weak", weak=True, **given).open()
    assert guarded(tmp_path / "weak", policy="strict", **given).open().bundle.policy == "strict"


def test_options_of_load_are_passed_on(tmp_path):
    dependency = guarded(small_bundle(), ledger=tmp_path / "clients.sqlite", client=by_key, observe=True)
    with TestClient(make_app(dependency)) as http:
        assert post(http, noise(), "m").status_code == 200
    with closing(SqliteLedger(tmp_path / "clients.sqlite")) as ledger:
        assert ledger.standing("mallory").alarmed
        assert load(small_bundle(), ledger=ledger).bind() is False


@pytest.mark.parametrize("plain", [False, True])
def test_a_websocket_is_refused_before_it_is_accepted_and_closed_afterwards(plain):
    guard = guarded(small_guard(), client=by_key)
    app, asking = make_app(guard, plain=plain), Depends(guard)

    @app.websocket("/talk")
    async def talk(socket: WebSocket, ask: Ask = asking) -> None:
        await socket.accept()
        while True:
            reply = await ask(torch.tensor(await socket.receive_json()))
            await socket.send_json(reply.probabilities.tolist())

    with TestClient(app) as http:
        with pytest.raises(WebSocketDenialResponse) as denied, http.websocket_connect("/talk"):
            pass
        assert denied.value.status_code == 401
        with http.websocket_connect("/talk", headers={"authorization": "Bearer m"}) as socket:
            socket.send_json(digits()[:1].tolist())
            assert len(socket.receive_json()) == 1
            socket.send_json(noise().tolist())
            with pytest.raises(WebSocketDisconnect) as refused:
                socket.receive_json()
        assert refused.value.code == 1008
        assert "stands accused" in refused.value.reason
