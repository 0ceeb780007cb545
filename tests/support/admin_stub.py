"""The admin routes and the dashboard around a real guard, ledger and key store that have seen some traffic."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from queen import Guard
from queen.errors import RefusedError
from queen.options import Group, Limits
from queen.serve.access.auth import Authenticator
from queen.serve.access.key_store import FileKeys
from queen.serve.admin.routes import admin_routes
from queen.serve.admin.static import dashboard_routes
from queen.serve.telemetry.series import Series
from queen.serve.types import Caller, ServeError, describe
from tests.support.prices import curve_of
from tests.support.serving import digits, noise, small_guard
from tests.support.waiting import PATIENCE, wait_for

NAMES = ("zero", "one", "two", "three", "four", "five", "<b>six</b>", "seven", "eight", "nine")
SCRIPT = "<script>document.title='pwned'</script>"
IMAGE = "<img src=x onerror=\"document.title='pwned'\">"
TURNED = "alice\u202egnp.exe"
HOSTILE = (SCRIPT, IMAGE, TURNED, "..", "a/../b?c#d%2F\"'&", "שלום עולם", "👩‍🚀 astronaut", "  two  spaces ", "x" * 256)
LIMITS = Limits(radius=0.12, threshold=0.08, extra_answers=150)


class AdminStub:
    """As much of a server as the routes need, made of real parts."""

    def __init__(self, guard: Guard, home: Path) -> None:
        self.guard, self.spec = guard, describe(guard.bundle, "digits")
        self.keys, self.series, self.started, self.ready = FileKeys(home), Series(), time.time() - 7_500, True
        self.admin_key, _ = self.keys.add("olga <admin>", admin=True)
        self.plain_key, _ = self.keys.add("alice")
        self.auth = Authenticator(self.keys, grace=60.0)
        self.fails: Exception | None = None
        self.advice: list[str] = []

    async def blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.fails:
            raise self.fails
        return await asyncio.to_thread(function, *args)

    async def admin(self, request: Request) -> Caller:
        await asyncio.to_thread(self.auth.refresh_once)
        return self.auth.admin(request.headers.get("authorization"), request.client.host if request.client else None)

    def app(self) -> Starlette:
        return Starlette(routes=[*admin_routes(self), *dashboard_routes()], exception_handlers={ServeError: _error})


async def _error(request: Request, error: ServeError) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse({"error": error.message}, error.status, headers)


def ask(guard: Guard, rows: Any, client: str, groups: tuple[str, ...] = ()) -> None:
    with suppress(RefusedError):
        guard.answer(rows, client=client, groups=groups)


PRICE = curve_of([(30, "held-out", False, 0.5, 0.59, 0.66), (3000, "held-out", False, 0.95, 0.97, 0.98)])


def busy_guard(**options: Any) -> Guard:
    """A guard that benign clients, a thief, a group, and clients with hostile names have used."""
    settings = {"limits": LIMITS, "groups": {"tenant": Group(limits=replace(LIMITS, extra_answers=900))}}
    guard = small_guard(**{**settings, **options})
    report = guard.report | {"price": PRICE.as_json()}
    guard = guard.with_bundle(replace(guard.bundle, class_names=NAMES, report=report))
    images = digits()
    grouped = ("tenant:7",) if guard.bundle.policy == "sentinel" else ()
    ask(guard, images[:200], "alice", grouped)
    ask(guard, images[200:], "bob@example.org", grouped)
    ask(guard, noise(150), "thief-7", grouped)
    for i, name in enumerate(HOSTILE):
        ask(guard, images[10 * i : 10 * i + 6], name)
    return guard


def fill(series: Series, *, seconds: int = 890) -> None:
    """A quarter of an hour of traffic, with an attack in it."""
    draw, now, real = random.Random(0), int(time.time()), series._clock
    for ago in range(seconds, 0, -1):
        series._clock = lambda ago=ago: now - ago
        attack = 240 < ago < 420
        for _ in range(draw.randint(18, 30) + (20 if attack else 0)):
            series.request(draw.lognormvariate(-5.6, 0.35), error=draw.random() < 0.002)
        bad = draw.randint(30, 45) if attack else 0
        letters = {"C": draw.randint(9, 16), "D": draw.randint(6, 12), "A": 4 + bad // 2, "B": bad // 6}
        rows = sum(letters.values())
        series.batch(rows, letters, alarmed=bad // 2 if ago < 400 else 0, refused=bad // 5)
    series._clock = real


class ExchangeableApp:
    """Passes requests on to `app`, which may be exchanged: to start and stop a server takes longer than most tests."""

    app: ASGIApp
    url: str  # where it listens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@contextmanager
def listening(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """The app on a port (0: a free one); gives its address."""
    config = uvicorn.Config(app, port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
