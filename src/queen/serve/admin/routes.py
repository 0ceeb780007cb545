"""The operators' API under /admin: how clients stand, what happened, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queen.errors import KeyStoreError, LedgerError, QueenError
from queen.guard import Guard
from queen.ledger import Budget, Standing
from queen.ledger.rows import check_client
from queen.serve.access.key_store import KeyStore
from queen.serve.admin.accounts import ORDERS, Accounts, account_facts, coverage_facts, limits_of, radius_of
from queen.serve.admin.background import BackgroundValue
from queen.serve.admin.facts import bundle_facts, event_facts, keys_by_name, server_facts
from queen.serve.admin.history import History
from queen.serve.admin.parameters import read_body, read_flag, read_number, read_text
from queen.serve.telemetry.series import Series
from queen.serve.types import Caller, ModelSpec, ServeError

MAX_LINES = 1000
MAX_POINTS = 5000
MAX_THREADS = 2  # of the server's threads: whatever operators do, some are left to check keys
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

NOT_YET = {"clients": None, "groups": None, "alarmed": None, "spent": None}

T = TypeVar("T")
Json = dict[str, Any]
Handler = Callable[[Request, Caller], Awaitable[Json]]


class AdminService(Protocol):
    """What the routes need of the server."""

    guard: Guard
    spec: ModelSpec
    keys: KeyStore
    series: Series
    started: float

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        ...

    @property
    def advice(self) -> list[str]:
        """What operators should know, a sentence each."""
        ...

    async def admin(self, request: Request) -> Caller:
        """The operator who asks, or `ServeError` 401 or 403."""
        ...

    async def blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that blocks, in a thread."""
        ...


def admin_routes(service: AdminService) -> list[Route]:
    """The routes under /admin; each checks the admin key first."""
    api = AdminApi(service)
    reads: Mapping[str, Handler] = {
        "/admin/overview": api.overview,
        "/admin/series": api.series,
        "/admin/clients": api.clients,
        "/admin/client": api.client,  # ?name= takes any name; a browser would swallow one like ".." in a path
        "/admin/clients/{name:path}": api.client,
        "/admin/records": api.records,
        "/admin/events": api.events,
    }
    actions: Mapping[str, Handler] = {
        "/admin/pardon": api.pardon,
        "/admin/allow": api.allow,
        "/admin/budget": api.budget,
        "/admin/revoke": api.revoke,
        "/admin/acknowledge": api.acknowledge,
    }
    return [
        *(Route(path, _endpoint(service, handler), methods=["GET"]) for path, handler in reads.items()),
        *(Route(path, _endpoint(service, handler), methods=["POST"]) for path, handler in actions.items()),
    ]


def _endpoint(service: AdminService, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            content = await handler(request, await service.admin(request))
        except (LedgerError, KeyStoreError) as error:
            raise ServeError(503, str(error), retry_after=1) from error
        except QueenError as error:
            raise ServeError(400, str(error)) from error
        return Response(orjson.dumps(content), media_type="application/json", headers=HEADERS)

    return endpoint


class AdminApi:
    """One handler per route. What they read is shared for a second, so that many dashboards cost no more than one."""

    def __init__(self, service: AdminService) -> None:
        self._service, self._guard = service, service.guard
        self._bundle, self._ledger = self._guard.bundle, self._guard.ledger
        self._threads = asyncio.Semaphore(MAX_THREADS)
        self._accounts = BackgroundValue(partial(self._in_thread, self._read_accounts))
        self._history = BackgroundValue(partial(self._in_thread, History(self._ledger).refresh))
        self._keys = BackgroundValue(partial(self._in_thread, lambda: keys_by_name(service.keys.keys())))

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        async with self._threads:
            return await self._service.blocking(function, *args)

    def _read_accounts(self) -> Accounts:
        return Accounts.read(self._ledger.each_standing(), self._bundle, self._ledger.now())

    async def _bar(self) -> float | None:
        """The wealth that accuses."""
        return await self._in_thread(lambda: self._guard.bar)

    def _calibration(self) -> int:
        """How many calibrations the ledger has met, this one included; every one of them raised the bar."""
        return self._ledger.number_of(self._bundle.test, claim=False)

    async def overview(self, request: Request, caller: Caller) -> Json:
        """Facts about the bundle and the server, and totals."""
        accounts, history = await asyncio.gather(self._accounts.get(), self._history.get())
        totals = (accounts.totals if accounts else NOT_YET) | {"unacknowledged": history and history.unacknowledged}
        service = self._service
        ledger_time = await self._in_thread(self._ledger.now)
        server = server_facts(
            self._ledger, ledger_time, ready=service.ready, started=service.started, advice=service.advice
        )
        bar = await self._bar()
        calibration = None if bar is None else await self._in_thread(self._calibration)
        bundle = bundle_facts(self._guard, self._service.spec, bar, calibration)
        return {"bundle": bundle, "server": server, "totals": totals}

    async def series(self, request: Request, caller: Caller) -> Json:
        """Counters of the last ?seconds=, second by second."""
        series = self._service.series
        return series.read(read_number(request, "seconds", series.seconds, most=series.seconds))

    async def clients(self, request: Request, caller: Caller) -> Json:
        """Clients and groups whose name contains ?search=, the first ?limit= by ?sort=."""
        limit = read_number(request, "limit", 100, most=MAX_LINES)
        sort, search = request.query_params.get("sort", "wealth"), request.query_params.get("search", "")
        if sort not in ORDERS:
            raise ServeError(400, f"no sort '{sort}'; known: {', '.join(ORDERS)}")
        if search:
            check_client(search)
        accounts, keys = await asyncio.gather(self._accounts.get(), self._keys.get())
        if accounts is None:
            return {"clients": [], "total": None, "complete": False, "at": None}
        standings = await self._in_thread(self._ranked, accounts, sort, search, limit)
        bar, now = await self._bar(), await self._in_thread(self._ledger.now)
        lines = [
            account_facts(s, self._bundle, now, bar, () if s.group else (keys or {}).get(s.name, ())) for s in standings
        ]
        return {"clients": lines, "total": accounts.total, "complete": accounts.complete, "at": accounts.at}

    def _ranked(self, accounts: Accounts, sort: str, search: str, limit: int) -> list[Standing]:
        """The standings of one page. If `accounts` is not complete, whoever has exactly this name is looked up."""
        standings = [account.standing for account in accounts.ranked(sort, search, limit)]
        if accounts.complete or not search:
            return standings
        named = [self._ledger.standing(search, group=group) for group in (False, True)]
        return [*(s for s in named if s.on_record), *(s for s in standings if s.name != search)][:limit]

    async def client(self, request: Request, caller: Caller) -> Json:
        """One client, or with ?group=1 a group: its coverage of every class, its events, and its keys."""
        name = request.path_params.get("name") or read_text(request, "name")
        return await self._details(name, group=read_flag(request, "group"))

    async def _details(self, name: str, *, group: bool) -> Json:
        standing = await self._in_thread(lambda: self._ledger.standing(name, group=group))
        history, keys = await asyncio.gather(self._history.get(), self._keys.get())
        events = history.about(name, group=group) if history else []
        own = () if group else (keys or {}).get(name, ())
        now = await self._in_thread(self._ledger.now)
        return account_facts(standing, self._bundle, now, await self._bar(), own) | {
            "known": standing.on_record,
            "coverage": coverage_facts(standing, self._bundle, now),
            "events": [event_facts(e) for e in reversed(events[-MAX_LINES:])],
        }

    async def records(self, request: Request, caller: Caller) -> Json:
        """The newest recorded points of a client in class ?label=, relative to the class's disc, and their radius."""
        name, group = read_text(request, "name"), read_flag(request, "group")
        label = read_number(request, "label", None)
        if label >= self._service.spec.classes:
            raise ServeError(400, f"no class {label}: the model has {self._service.spec.classes}")
        radius = radius_of(limits_of(Standing(name, group), self._bundle), label)
        if group:
            note = "A map shows one client; open a member of this group."
            return {"points": [], "total": 0, "radius": radius, "note": note}
        points = (await self._in_thread(self._ledger.records, name)).get(label, ())
        newest = [[float(x), float(y)] for x, y in points[-MAX_POINTS:]]
        return {"points": newest, "total": len(points), "radius": radius, "note": None}

    async def events(self, request: Request, caller: Caller) -> Json:
        """The newest ?limit= events (notices, and what operators did), newest first."""
        limit = read_number(request, "limit", MAX_LINES, most=MAX_LINES)
        history = await self._history.get()
        events = history.events if history else []
        return {"events": [event_facts(e) for e in reversed(events[-limit:])] if limit else [], "total": len(events)}

    async def pardon(self, request: Request, caller: Caller) -> Json:
        """Clear the alarm and wealth of {name}, or of a {group: true}."""
        body = await read_body(request, required={"name": str}, optional={"group": bool})
        name, group = body["name"], body.get("group", False)

        def pardon() -> None:
            if not self._ledger.standing(name, group=group).on_record:
                raise ServeError(404, f"no {'group' if group else 'client'} '{name}' in this ledger")
            self._ledger.pardon(name, caller.client, group=group)

        return await self._act(pardon, name, group=group)

    async def allow(self, request: Request, caller: Caller) -> Json:
        """Put {name} on the allow-list, or take it off: {allowed}."""
        body = await read_body(request, required={"name": str, "allowed": bool})
        name, allowed = body["name"], body["allowed"]
        return await self._act(lambda: self._ledger.allow(name, caller.client, allowed=allowed), name)

    async def budget(self, request: Request, caller: Caller) -> Json:
        """Give {name} a budget of its own: {extra_answers, threshold}, for life or as "2000/day".

        Where one is null the guard's limit holds; if both are, the client has no budget of its own any more.
        """
        body = await read_body(
            request, required={"name": str, "extra_answers": int | str | None, "threshold": float | int | str | None}
        )
        name = body.pop("name")
        own = Budget(**body) if any(value is not None for value in body.values()) else None
        return await self._act(lambda: self._ledger.set_budget(name, own, caller.client), name)

    async def revoke(self, request: Request, caller: Caller) -> Json:
        """Revoke the key of this {id}, or all keys of this {name}."""
        body = await read_body(request, required={}, optional={"name": str, "id": str})
        if len(body) != 1:
            raise ServeError(400, "expected name or id")
        try:
            revoked = await self._in_thread(self._service.keys.revoke, *body.values())
        finally:
            self._keys.forget()  # also if it holds in this server alone
        return {"revoked": [key.id for key in revoked]}

    async def acknowledge(self, request: Request, caller: Caller) -> Json:
        """Note that this operator has seen an {event}."""
        event = (await read_body(request, required={"event": int}))["event"]
        await self._in_thread(self._ledger.acknowledge, event, caller.client)
        self._history.forget()
        return {"acknowledged": event, "actor": caller.client}

    async def _act(self, action: Callable[[], None], name: str, *, group: bool = False) -> Json:
        """Run the action in a thread, and answer with how the client or group stands now."""
        await self._in_thread(action)
        self._history.forget()
        standing = await self._in_thread(lambda: self._ledger.standing(name, group=group))
        if accounts := await self._accounts.get():
            accounts.put(standing)  # to read all of them again may take long
        return await self._details(name, group=group)
