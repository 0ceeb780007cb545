"""The webhook against a real HTTP server that takes, refuses, redirects, fails and dawdles."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from queen.errors import OptionError
from queen.ledger import Event
from queen.serve.telemetry import webhook
from queen.serve.telemetry.metrics import Metrics
from queen.serve.telemetry.webhook import Webhook, make_notification, sign
from tests.support.metrics import values

SECRET = "correct horse"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def alarm(number: int = 1, **changes: object) -> Event:
    usual = {"what": "alarm", "name": "mallory", "group": False, "client": "mallory", "wealth": 1234.5, "queries": 20,
             "coverage": {3: 0.25}, "actor": "", "at": 1_700_000_000.25}  # fmt: skip
    return Event(number, **(usual | changes))


class Receiver:
    """Remembers every post; answers with the next of `statuses`, the last one for ever, once `answer` is set."""

    def __init__(self, statuses: list[int]) -> None:
        self.answer = threading.Event()
        self.answer.set()
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append(({k.lower(): v for k, v in self.headers.items()}, body))
                receiver.paths.append(self.path)
                receiver.answer.wait(60)
                status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?x=1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def ids(self) -> list[int]:
        return [json.loads(body)["id"] for _, body in self.posts]


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    one = Receiver(list(statuses) or [200])
    try:
        yield one
    finally:
        one.answer.set()
        one.close()


async def until(condition, timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.005)
    assert condition()


def send(hook: Webhook, *events: Event, wait=None) -> None:
    """Start, submit, wait for a condition, stop."""

    async def run() -> None:
        await hook.start()
        for event in events:
            hook.submit(event)
        if wait is not None:
            await until(wait)
        await hook.stop()

    asyncio.run(run())


def test_an_alarm_arrives_as_signed_json():
    with receiver() as server:
        send(Webhook(server.url, secret=SECRET, server="guard-1"), alarm())
    [(headers, body)] = server.posts
    assert server.paths == ["/hook?x=1"]
    content = json.loads(body)
    key = content.pop("idempotency_key")
    assert content == {
        "event": "alarm",
        "id": 1,
        "name": "mallory",
        "group": False,
        "client": "mallory",
        "wealth": 1234.5,
        "queries": 20,
        "coverage": {"3": 0.25},
        "at": 1_700_000_000.25,
        "server": "guard-1",
    }
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == key
    expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-queen-signature"] == f"sha256={expected}"
    assert SECRET not in str(headers) + body.decode()


def test_a_changed_body_or_another_secret_has_another_signature():
    body = make_notification(alarm(), "s").body
    assert sign(SECRET, body) == sign(SECRET, bytes(body))
    assert len({sign(SECRET, body), sign(SECRET, body + b" "), sign("other", body)}) == 3


def test_without_a_secret_nothing_is_signed():
    with receiver() as server:
        send(Webhook(server.url, secret=None), alarm())
    assert "x-queen-signature" not in server.posts[0][0]


def test_the_idempotency_key_is_the_alarms_own():
    assert (
        make_notification(alarm(), "a").key == make_notification(alarm(), "b").key
    )  # two replicas tell of the same alarm
    others = [alarm(2), alarm(name="eve"), alarm(group=True), alarm(at=1.0), alarm(what="pardon")]
    assert len({make_notification(event, "a").key for event in [alarm(), *others]}) == 6


def test_endless_wealth_is_still_json():
    body = make_notification(alarm(wealth=float("inf")), "s").body
    assert json.loads(body, parse_constant=pytest.fail)["wealth"] > 1e308


def test_a_server_that_fails_twice_gets_the_same_post_three_times_with_growing_pauses(monkeypatch):
    metrics, pauses = Metrics(), []
    with receiver(500, 503, 200) as server:
        hook = Webhook(server.url, secret=SECRET, pause=0.05, metrics=metrics)
        monkeypatch.setattr(hook._changed, "wait_for", lambda _, pause: pauses.append(pause))
        send(hook, alarm(), wait=lambda: values(metrics)["queen_webhook_total{outcome=sent}"] == 1)
    assert len({body for _, body in server.posts}) == 1
    assert len({headers["idempotency-key"] for headers, _ in server.posts}) == 1
    assert (len(server.posts), pauses) == (3, [0.05, 0.1])
    assert values(metrics)["queen_webhook_total{outcome=failed}"] == 0


def test_a_server_that_always_fails_is_given_up_and_the_next_alarm_is_tried(capsys):
    metrics = Metrics()
    with receiver(500) as server:
        hook = Webhook(server.url, retries=2, pause=0.0, metrics=metrics)
        send(hook, alarm(1), alarm(2), wait=lambda: values(metrics)["queen_webhook_total{outcome=failed}"] == 2)
    assert server.ids == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 410])
def test_redirects_and_refusals_are_final(status):
    metrics = Metrics()
    with receiver(status) as server:
        hook = Webhook(server.url, pause=0.0, metrics=metrics)
        send(hook, alarm(), wait=lambda: values(metrics)["queen_webhook_total{outcome=failed}"] == 1)
    assert server.paths == ["/hook?x=1"]  # and nothing at /elsewhere


def test_a_server_that_is_not_there_is_tried_again():
    with receiver() as server:
        url = server.url
    metrics = Metrics()
    hook = Webhook(url, retries=1, pause=0.0, metrics=metrics)
    send(hook, alarm(), wait=lambda: values(metrics)["queen_webhook_total{outcome=failed}"] == 1)
    assert values(metrics)["queen_webhook_total{outcome=sent}"] == 0


def test_a_slow_server_holds_up_nobody_and_the_oldest_alarms_go():
    metrics = Metrics()

    async def run(hook: Webhook) -> None:
        await hook.start()
        hook.submit(alarm(1))
        await until(lambda: len(server.posts) == 1)  # the sender now waits for the server
        for number in range(2, 102):
            hook.submit(alarm(number))
        await asyncio.sleep(0)  # the event loop is free meanwhile
        assert server.ids == [1]
        server.answer.set()
        await until(lambda: len(server.posts) == 4)
        await hook.stop()

    with receiver() as server:
        server.answer.clear()
        asyncio.run(run(Webhook(server.url, size=3, timeout=60.0, metrics=metrics)))
    assert server.ids == [1, 99, 100, 101]
    assert values(metrics)["queen_webhook_total{outcome=dropped}"] == 97


def test_a_hanging_server_does_not_delay_shutdown_for_long(monkeypatch):
    monkeypatch.setattr(webhook, "DRAIN", 0.2)
    metrics = Metrics()

    async def run(hook: Webhook) -> None:
        await hook.start()
        for number in range(4):
            hook.submit(alarm(number))
        await until(lambda: len(server.posts) == 1)
        await hook.stop()
        assert not server.answer.is_set()  # it did not wait for that

    with receiver() as server:
        server.answer.clear()
        asyncio.run(run(Webhook(server.url, timeout=60.0, metrics=metrics)))
    assert values(metrics)["queen_webhook_total{outcome=dropped}"] == 3


def test_a_hanging_server_times_out():
    metrics = Metrics()
    with receiver() as server:
        server.answer.clear()
        hook = Webhook(server.url, timeout=0.1, retries=1, pause=0.0, metrics=metrics)
        send(hook, alarm(), wait=lambda: values(metrics)["queen_webhook_total{outcome=failed}"] == 1)
        asyncio.run(until(lambda: len(server.posts) == 2))


def test_what_waits_is_sent_at_shutdown_without_pauses(monkeypatch):
    monkeypatch.setattr(webhook, "DRAIN", 60.0)
    with receiver(500, 200) as server:
        send(Webhook(server.url, pause=1e6), alarm(1), alarm(2), wait=lambda: len(server.posts) == 1)
    assert server.ids == [1, 1, 2]


def test_alarms_may_come_from_any_thread():
    with receiver() as server:
        hook = Webhook(server.url)

        async def run() -> None:
            await hook.start()
            await asyncio.gather(*(asyncio.to_thread(hook.submit, alarm(n)) for n in range(20)))
            await until(lambda: len(server.posts) == 20)
            await hook.stop()

        asyncio.run(run())
    assert sorted(server.ids) == list(range(20))


def test_a_webhook_that_never_started_can_be_stopped():
    hook = Webhook("http://127.0.0.1:9/")
    hook.submit(alarm())
    asyncio.run(hook.stop())
    assert hook.host == "127.0.0.1:9"


def test_the_log_says_what_failed_but_not_the_whole_url(monkeypatch):
    lines = []
    monkeypatch.setattr("queen.serve.telemetry.webhook.log", lambda event, **fields: lines.append((event, fields)))
    with receiver(404) as server:
        send(Webhook(server.url, secret=SECRET), alarm(), wait=lambda: lines)
    [(event, fields)] = lines
    assert event == "webhook_failed"
    assert (fields["status"], fields["attempt"], fields["final"]) == (404, 1, True)
    assert "hook" not in str(fields)
    assert SECRET not in str(fields)


@pytest.mark.parametrize(
    "url",
    ["", "example.org/hook", "file:///etc/passwd", "ftp://example.org/", "http://", "http://[::1", "http://a:b@example.org",
     "http://example.org:99999/", "http://example.org/a b", "http://example.org/\n", "http://ex\u00e4mple.org/", "gopher://x"],
)  # fmt: skip
def test_only_plain_http_urls_are_taken(url):
    with pytest.raises(OptionError):
        Webhook(url)


def test_numbers_that_make_no_sense_are_refused():
    for options in ({"timeout": 0}, {"retries": -1}, {"size": 0}, {"pause": -1}):
        with pytest.raises(OptionError):
            Webhook("http://127.0.0.1/", **options)
    assert Webhook("https://example.org/hook").host == "example.org"
