"""What the server promises while things fail: budgets in force before keys, readiness, and nobody waits for others."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading

import numpy as np
import pytest
import torch

from queen.errors import OptionError, SecretError
from queen.ledger import Budget
from queen.serve.access.key_store import FileKeys
from queen.serve.queue.admission import MAX_PARSES
from queen.serve.run import start_warnings
from queen.serve.settings import read_settings
from queen.serve.types import Caller, Query, ServeError
from tests.support.failing_ledger import FailingFor
from tests.support.http import body, read_answer
from tests.support.server import running_service
from tests.support.serving import digits, honest, inference_body


def test_a_pending_budget_means_503_and_a_failing_key_store_red_health(tmp_path):
    async def check():
        async with running_service(tmp_path) as (one, _):
            key, _ = FileKeys(tmp_path).add("adam", budget=Budget(extra_answers=3))
            one.guard.ledger.standing = FailingFor({"adam"}).standing
            with pytest.raises(ServeError) as error:
                await one.key_watcher.caller(f"Bearer {key}", None, None)
            assert (error.value.status, error.value.retry_after) == (503, 1)
            del one.guard.ledger.standing
            await one.key_watcher.refresh()
            assert (await one.key_watcher.caller(f"Bearer {key}", None, None)).client == "adam"
            assert one.guard.ledger.standing("adam").budget == Budget(extra_answers=3)
            assert one.ready
            (tmp_path / "keys.json").write_text("{")
            await one.key_watcher.refresh()
            assert not one.ready

    asyncio.run(check())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, []),
        ({"observe": True}, ["observe is on"]),
        ({"policy": "none"}, ["policy none protects nothing"]),
        ({"observe": True, "ledger": "memory://"}, ["observe is on", "the ledger is in memory"]),
    ],
)
def test_operators_hear_at_the_start_that_a_server_protects_less_than_usual(tmp_path, settings, told):
    async def check():
        given = {"ledger": f"sqlite:///{tmp_path / 'a.sqlite'}", **settings}
        async with running_service(tmp_path, **given) as (one, _):
            warnings = start_warnings(one)
            assert len(warnings) == len(told)
            assert all(warning.startswith(start) for warning, start in zip(warnings, told, strict=True))

    asyncio.run(check())


def test_a_ledger_that_hangs_stops_no_revocation(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(60)

    async def check():
        async with running_service(tmp_path) as (one, _):
            key, _ = FileKeys(tmp_path).add("adam")
            await one.key_watcher.caller(f"Bearer {key}", None, None)
            one.guard.ledger.verify = hang
            try:
                await asyncio.to_thread(entered.wait, 60)
                FileKeys(tmp_path).revoke("adam")
                async with asyncio.timeout(30):
                    for _ in range(2):  # a reading that had begun before is shared
                        await one.key_watcher.refresh()
                with pytest.raises(ServeError) as error:
                    await one.key_watcher.caller(f"Bearer {key}", None, None)
                assert error.value.status == 401
            finally:
                leave.set()

    asyncio.run(check())


def test_features_beyond_all_numbers_are_one_clients_mistake(tmp_path):
    async def check():
        async with running_service(tmp_path) as (one, _):
            one.guard.bundle.geometry  # noqa: B018  (it exists)
            good, bad = Query(digits()[:1], 1), Query(torch.full((1, 1, 8, 8), 1e37), 1)
            object.__setattr__(one.guard.bundle, "input_range", None)
            waiting = [one.infer(bad, Caller("evil")), one.infer(good, Caller("honest"))]
            return await asyncio.gather(*waiting, return_exceptions=True), one.guard.ledger.clients()

    (wrong, right), clients = asyncio.run(check())
    assert isinstance(wrong, ServeError)
    assert wrong.status == 400
    assert np.allclose(right, honest(digits()[:1]).numpy(), atol=1e-5)
    assert list(clients) == ["honest"]


def test_many_large_requests_are_told_to_come_later_and_small_ones_are_answered(tmp_path):
    async def check():
        async with running_service(tmp_path) as (_, ports):
            key, _ = FileKeys(tmp_path).add("flood")
            packed = gzip.compress(b" " * 8_000_000)
            lines = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"

            async def send(content: bytes, extra: str = "") -> int:
                reader, writer = await asyncio.open_connection("127.0.0.1", ports.rest)
                writer.write(f"{lines}{extra}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                status, _, _ = await read_answer(reader)
                writer.close()
                return status

            flood = [asyncio.create_task(send(packed, "Content-Encoding: gzip\r\n")) for _ in range(3 * MAX_PARSES)]
            await asyncio.sleep(0.05)
            small = await send(body())
            return small, await asyncio.gather(*flood)

    small, flood = asyncio.run(check())
    assert small == 200
    assert set(flood) == {400, 503}


def test_what_is_left_of_a_large_request_is_dropped_when_its_client_hangs_up(tmp_path):
    async def check():
        async with running_service(tmp_path, max_turn=8) as (service, ports):
            key, _ = FileKeys(tmp_path).add("gone")
            measure, free = service.guard.measure, threading.Event()
            service.guard.measure = lambda x: free.wait(60) and measure(x)
            content = inference_body(digits()[:200])
            lines = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            _, writer = await asyncio.open_connection("127.0.0.1", ports.rest)
            writer.write(f"{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            while not service.batcher.waiting:
                await asyncio.sleep(0.01)
            writer.transport.abort()
            while not service.metrics.render()[0].count(b'status="other"'):
                await asyncio.sleep(0.01)
            free.set()
            await service.infer(Query(digits()[:1], 1), Caller("next"))
            return service.guard.ledger.standing("gone").queries

    assert asyncio.run(asyncio.wait_for(check(), 60)) < 200


def test_a_bad_certificate_is_an_error_and_not_a_wait(tmp_path):
    (tmp_path / "cert.pem").write_text("no certificate")
    (tmp_path / "key.pem").write_text("no key")

    async def check():
        async with running_service(tmp_path, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"):
            pass

    with pytest.raises(OptionError, match=r"cert\.pem"):
        asyncio.run(asyncio.wait_for(check(), 30))
    with pytest.raises(OptionError, match="there is no file"):
        read_settings({"bundle": "b", "tls_cert": tmp_path / "nothing.pem", "tls_key": tmp_path / "key.pem"})


def test_the_file_of_the_webhooks_secret_must_be_private_and_hold_one(tmp_path, monkeypatch):
    file = tmp_path / "secret"
    options = {"webhook": "http://127.0.0.1:1/", "webhook_secret_file": file}

    async def check():
        async with running_service(tmp_path, **options):
            pass

    for content, mode, says in (("hush", 0o644, "chmod 600"), (" \n", 0o600, "is empty"), (None, 0, "cannot read")):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
            file.chmod(mode)
        with pytest.raises(SecretError, match=says):
            asyncio.run(check())
    monkeypatch.setenv("QUEEN_WEBHOOK_SECRET", "hush")
    assert read_settings({"bundle": "b"}).webhook_secret == "hush"
    assert read_settings({"bundle": "b", **options}).webhook_secret is None  # the flag wins
    with pytest.raises(OptionError, match="got both"):
        read_settings({"bundle": "b", "webhook_secret": "hush", **options})


def test_the_description_needs_a_key(tmp_path):
    async def check():
        async with running_service(tmp_path) as (_, ports):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports.rest)
            writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
            status, _, content = await read_answer(reader)
            writer.close()
            return status, json.loads(content)

    status, error = asyncio.run(check())
    assert (status, list(error)) == (401, ["error"])
