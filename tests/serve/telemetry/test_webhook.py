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

from queen.errors import LedgerError, OptionError
from queen.ledger import Event, Ledger, MemoryLedger, SqliteLedger
from queen.serve.telemetry import webhook
from queen.serve.telemetry.metrics import Metrics
from queen.serve.telemetry.webhook import Webhook, make_notification, sign
from tests.reference.watch import Rules
from tests.support.ledgers import redis_ledger
from tests.support.metrics import values
from tests.support.queries import FOREIGN, PLENTY, judge, picture

SECRET = "correct horse"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def alarm(number: int = 1, **changes: object) -> Event:
    usual = {"what": "alarm", "name": "mallory", "group": False, "client": "mallory", "wealth": 1234.5, "queries": 20,
             "coverage": {3: 0.25}, "actor": "", "at": 1_700_000_000.25}  # fmt: skip
    return Event(number, **(usual | changes))


class Noting(MemoryLedger):
    """A ledger in memory, to which events are added as they are."""

    def note(self, *events: Event) -> None:
        with self._lock:
            for event in events:
                self._log(event)


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


def send(url: str, *events: Event, wait=None, ledger: Noting | None = None, **options: object) -> None:
    """Start, note events, wait for a condition, stop."""
    ledger = ledger or Noting()

    async def run() -> None:
        hook = Webhook(url, ledger, **options)
        await hook.start()
        ledger.note(*events)
        hook.wake()
        if wait is not None:
            await until(wait)
        await hook.stop()

    asyncio.run(run())


def test_an_alarm_arrives_as_signed_json():
    with receiver() as server:
        send(server.url, alarm(), secret=SECRET, server="guard-1", wait=lambda: server.posts)
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
        send(server.url, alarm(), wait=lambda: server.posts)
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


def counted(metrics: Metrics, outcome: str) -> float:
    return values(metrics)[f"queen_webhook_total{{outcome={outcome}}}"]


def test_a_server_that_fails_twice_gets_the_same_post_three_times_with_growing_pauses(monkeypatch):
    metrics, pauses = Metrics(), []
    real = threading.Condition.wait_for

    def wait_for(self, condition, timeout):
        if timeout < 1:
            pauses.append(timeout)
            timeout = 0
        return real(self, condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)
    with receiver(500, 503, 200) as server:
        send(server.url, alarm(), pause=0.05, metrics=metrics, wait=lambda: counted(metrics, "sent") == 1)
    assert len({body for _, body in server.posts}) == 1
    assert len({headers["idempotency-key"] for headers, _ in server.posts}) == 1
    assert (len(server.posts), pauses[:2]) == (3, [0.05, 0.1])
    assert counted(metrics, "failed") == 0


def test_a_server_that_is_down_gets_everything_in_order_when_it_is_back():
    metrics = Metrics()
    with receiver(*[500] * 20, 200) as server:
        send(server.url, alarm(), alarm(), pause=0.0, metrics=metrics, wait=lambda: counted(metrics, "sent") == 2)
    assert server.ids == [1] * 21 + [2]
    assert counted(metrics, "failed") == 0


@pytest.mark.parametrize("status", [400, 401, 404, 410, 499])
def test_refusals_are_final_and_the_next_is_tried(status):
    metrics = Metrics()
    with receiver(status, 200) as server:
        send(server.url, alarm(), alarm(), pause=0.0, metrics=metrics, wait=lambda: counted(metrics, "sent") == 1)
    assert (server.ids, counted(metrics, "failed")) == ([1, 2], 1)


@pytest.mark.parametrize("status", [301, 302, 307, 308, 408, 425, 429, 500, 501, 505, 507, 520, 530, 599, 600])
def test_what_may_pass_or_be_set_right_is_tried_again(status):
    metrics = Metrics()
    with receiver(status, status, 200) as server:
        send(server.url, alarm(), alarm(), pause=0.0, metrics=metrics, wait=lambda: counted(metrics, "sent") == 2)
    assert server.paths == ["/hook?x=1"] * 4  # and nothing at /elsewhere
    assert (server.ids, counted(metrics, "failed")) == ([1, 1, 1, 2], 0)


def test_a_redirect_is_logged_as_what_an_operator_must_set_right(monkeypatch):
    lines = []
    monkeypatch.setattr("queen.serve.telemetry.webhook.log", lambda event, **fields: lines.append(fields))
    with receiver(308, 200) as server:
        send(server.url, alarm(), pause=0.0, wait=lambda: len(server.posts) == 2)
    [line] = lines
    assert (line["level"], line["final"], line["id"]) == ("error", False, 1)
    assert "redirects are not followed" in line["why"]


def test_a_server_that_is_not_there_is_tried_again(monkeypatch):
    lines = []
    monkeypatch.setattr("queen.serve.telemetry.webhook.log", lambda event, **fields: lines.append(fields["attempt"]))
    with receiver() as server:
        url = server.url
    metrics = Metrics()
    send(url, alarm(), pause=0.0, metrics=metrics, wait=lambda: len(lines) > 3)
    assert lines[:4] == [1, 2, 3, 4]
    assert counted(metrics, "sent") == 0


def test_what_operators_did_is_not_posted_and_what_the_ledger_notes_is():
    with receiver() as server:
        kinds = ("allow", "budget low", "pardon", "budget", "class spent", "disallow")
        send(server.url, *(alarm(what=what) for what in kinds), wait=lambda: len(server.posts) == 2)
    assert [json.loads(body)["event"] for _, body in server.posts] == ["budget low", "class spent"]
    assert server.ids == [2, 5]  # the numbers are the ledger's


def test_old_news_is_not_sent_when_a_webhook_is_set_for_the_first_time():
    ledger = Noting()
    ledger.note(alarm(), alarm())
    with receiver() as server, receiver() as other:
        send(server.url, alarm(), ledger=ledger, wait=lambda: server.posts)
        send(other.url, alarm(), ledger=ledger, wait=lambda: other.posts)
        send(server.url, ledger=ledger, wait=lambda: len(server.posts) == 2)  # what came in between
    assert (server.ids, other.ids) == ([3, 4], [4])


def test_what_was_not_delivered_is_sent_after_the_next_start():
    ledger = Noting()
    with receiver() as server:
        asyncio.run(Webhook(server.url, ledger).start())  # and killed at once
        ledger.note(alarm(), alarm())
    with receiver() as other:
        started = Webhook(server.url, ledger)
        started._url = other.url  # the same address, where somebody listens again
        asyncio.run(finish(started, lambda: len(other.posts) == 2))
    assert other.ids == [1, 2]


async def finish(hook: Webhook, condition) -> None:
    await hook.start()
    await until(condition)
    await hook.stop()


@pytest.mark.parametrize("make", [Noting, lambda: SqliteLedger(":memory:"), redis_ledger])
def test_the_place_is_in_the_ledger_and_servers_that_share_it_share_the_work(make):
    ledger: Ledger = make()
    with receiver() as server:
        hooks = [Webhook(server.url, ledger, server=name) for name in ("one", "two")]

        async def run() -> None:
            for hook in hooks:
                await hook.start()
            for turn in range(6):
                _raise_alarm(ledger, turn)
                hooks[turn % 2].wake()
                await until(lambda turn=turn: turn + 1 in server.ids)
            for hook in hooks:
                await hook.stop()

        asyncio.run(run())
    ledger.close()
    assert list(dict.fromkeys(server.ids)) == [1, 2, 3, 4, 5, 6]  # one may come twice: both may look at the same moment
    assert {json.loads(body)["server"] for _, body in server.posts} == {"one", "two"}


def _raise_alarm(ledger: Ledger, number: int) -> None:
    judge(ledger, Rules(PLENTY, bar=1.0), picture(0, client=f"c{number}", bet=FOREIGN))


def test_a_ledger_that_fails_is_asked_again(monkeypatch):
    ledger, failures = Noting(), []

    def events(*, after: int = 0) -> list[Event]:
        if len(failures) < 2:
            failures.append(after)
            raise LedgerError("down")
        return Noting.events(ledger, after=after)

    with receiver() as server:
        hook = Webhook(server.url, ledger)

        async def run() -> None:
            await hook.start()
            monkeypatch.setattr(ledger, "events", events)
            ledger.note(alarm())
            while not server.posts:
                hook.wake()
                await asyncio.sleep(0.01)
            await hook.stop()

        asyncio.run(run())
    assert (server.ids, len(failures)) == ([1], 2)


def test_a_hanging_server_does_not_delay_shutdown_for_long_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(webhook, "DRAIN", 0.2)
    ledger = Noting()

    async def run(hook: Webhook) -> None:
        await hook.start()
        ledger.note(*(alarm() for _ in range(4)))
        hook.wake()
        await until(lambda: len(server.posts) == 1)
        await hook.stop()
        assert not server.answer.is_set()  # it did not wait for that

    with receiver() as server:
        server.answer.clear()
        asyncio.run(run(Webhook(server.url, ledger, timeout=60.0)))
        server.answer.set()
        asyncio.run(finish(Webhook(server.url, ledger), lambda: 4 in server.ids))
    assert set(server.ids) == {1, 2, 3, 4}  # the first one perhaps twice, with the same key
    assert len({headers["idempotency-key"] for headers, _ in server.posts}) == 4


def test_a_hanging_server_times_out():
    with receiver() as server:
        server.answer.clear()
        send(server.url, alarm(), timeout=0.1, pause=0.0, wait=lambda: len(server.posts) == 2)


def test_what_waits_is_sent_at_shutdown_without_pauses(monkeypatch):
    monkeypatch.setattr(webhook, "DRAIN", 60.0)
    monkeypatch.setattr(webhook, "MAX_PAUSE", 1e6)
    with receiver(500, 200) as server:
        send(server.url, alarm(), alarm(), pause=1e6, wait=lambda: len(server.posts) == 1)
    assert server.ids == [1, 1, 2]


def test_a_webhook_that_never_started_can_be_stopped():
    hook = Webhook("http://127.0.0.1:9/", Noting())
    hook.wake()
    asyncio.run(hook.stop())
    assert hook.host == "127.0.0.1:9"


def test_the_log_says_what_failed_but_not_the_whole_url(monkeypatch):
    lines = []
    monkeypatch.setattr("queen.serve.telemetry.webhook.log", lambda event, **fields: lines.append((event, fields)))
    with receiver(404) as server:
        send(server.url, alarm(), secret=SECRET, wait=lambda: lines)
    [(event, fields)] = lines
    assert event == "webhook_failed"
    assert (fields["status"], fields["attempt"], fields["final"], fields["id"]) == (404, 1, True, 1)
    assert "hook" not in str(fields)
    assert SECRET not in str(fields)


@pytest.mark.parametrize(
    "url",
    ["", "example.org/hook", "file:///etc/passwd", "ftp://example.org/", "http://", "http://[::1", "http://a:b@example.org",
     "http://example.org:99999/", "http://example.org/a b", "http://example.org/\n", "http://ex\u00e4mple.org/", "gopher://x"],
)  # fmt: skip
def test_only_plain_http_urls_are_taken(url):
    with pytest.raises(OptionError):
        Webhook(url, Noting())


def test_numbers_that_make_no_sense_are_refused():
    for options in ({"timeout": 0}, {"pause": -1}):
        with pytest.raises(OptionError):
            Webhook("http://127.0.0.1/", Noting(), **options)
    assert Webhook("https://example.org/hook", Noting()).host == "example.org"
