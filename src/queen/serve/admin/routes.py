"""The operators' API under /admin: where clients stand, what happened, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queen.errors import LedgerError, QueenError
from queen.guard import Guard
from queen.ledger import Budget, Standing
from queen.ledger.rows import check_client
from queen.serve.access.key_store import KeyStore
from queen.serve.admin.accounts import ORDERS, Accounts, limits_of, radius_of, show, show_classes
from queen.serve.admin.background import Recent
from queen.serve.admin.facts import History, bundle_facts, event_facts, keys_by_name, server_facts
from queen.serve.admin.parameters import read_body, read_flag, read_number, read_text
from queen.serve.admin.static import dashboard_routes
from queen.serve.telemetry.series import Series
from queen.serve.types import Caller, ModelSpec, ServeError

__all__ = ["AdminService", "Series", "admin_routes", "dashboard_routes"]

MAX_LINES = 1000
MAX_POINTS = 5000
MAX_THREADS = 2  # of the server's: whatever operators do, some are left for keys
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

NOT_YET = {"clients": None, "groups": None, "alarmed": None}

T = TypeVar("T")
Json = dict[str, Any]
Handler = Callable[[Request, Caller], Awaitable[Json]]


class AdminService(Protocol):
    """What operators need of the server."""

    guard: Guard
    spec: ModelSpec
    keys: KeyStore
    series: Series
    started: float

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        ...

    async def admin(self, request: Request) -> Caller:
        """The operator who asks, or `ServeError` 401 or 403."""
        ...

    async def blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that blocks, in a thread."""
        ...


def admin_routes(service: AdminService) -> list[Route]:
    """The routes under /admin; each asks for the admin key first."""
    desk = AdminApi(service)
    reads: Mapping[str, Handler] = {
        "/admin/overview": desk.overview,
        "/admin/series": desk.series,
        "/admin/clients": desk.clients,
        "/admin/client": desk.client,  # ?name= takes any name; a browser would swallow one like ".." in a path
        "/admin/clients/{name:path}": desk.client,
        "/admin/records": desk.records,
        "/admin/events": desk.events,
    }
    actions: Mapping[str, Handler] = {
        "/admin/pardon": desk.pardon,
        "/admin/allow": desk.allow,
        "/admin/budget": desk.budget,
        "/admin/revoke": desk.revoke,
        "/admin/acknowledge": desk.acknowledge,
    }
    return [
        *(Route(path, _endpoint(service, handler), methods=["GET"]) for path, handler in reads.items()),
        *(Route(path, _endpoint(service, handler), methods=["POST"]) for path, handler in actions.items()),
    ]


def _endpoint(service: AdminService, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            found = await handler(request, await service.admin(request))
        except LedgerError as error:
            raise ServeError(503, str(error), retry_after=1) from error
        except QueenError as error:
            raise ServeError(400, str(error)) from error
        return Response(orjson.dumps(found), media_type="application/json", headers=HEADERS)

    return endpoint


class AdminApi:
    """The handlers, and what they remember for a second so that many open dashboards cost no more than one."""

    def __init__(self, service: AdminService) -> None:
        self._service, self._bundle, self._ledger = service, service.guard.bundle, service.guard.ledger
        self._threads = asyncio.Semaphore(MAX_THREADS)
        self._accounts = Recent(partial(self._thread, self._read_accounts))
        self._history = Recent(partial(self._thread, lambda: History(self._ledger.events())))
        self._keys = Recent(partial(self._thread, lambda: keys_by_name(service.keys.keys())))

    async def _thread(self, function: Callable[..., T], *args: Any) -> T:
        async with self._threads:
            return await self._service.blocking(function, *args)

    def _read_accounts(self) -> Accounts:
        return Accounts.read(self._ledger.each_standing(), self._bundle)

    async def overview(self, request: Request, caller: Caller) -> Json:
        """Facts about the bundle and the server, and totals."""
        accounts, history = await asyncio.gather(self._accounts.get(), self._history.get())
        totals = (accounts.totals if accounts else NOT_YET) | {"unacknowledged": history and history.unseen}
        server = server_facts(self._ledger, ready=self._service.ready, started=self._service.started)
        return {"bundle": bundle_facts(self._service.guard, self._service.spec), "server": server, "totals": totals}

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
        found = await self._thread(self._ranked, accounts, sort, search, limit)
        shown = [show(s, self._bundle, () if s.group else (keys or {}).get(s.name, ())) for s in found]
        return {"clients": shown, "total": accounts.total, "complete": accounts.complete, "at": accounts.at}

    def _ranked(self, accounts: Accounts, sort: str, search: str, limit: int) -> list[Standing]:
        """Of very many clients not all are held; one that is asked for by its whole name is looked up."""
        found = [account.standing for account in accounts.ranked(sort, search, limit)]
        if accounts.complete or not search:
            return found
        named = [self._ledger.standing(search, group=group) for group in (False, True)]
        return [*(s for s in named if s.on_record), *(s for s in found if s.name != search)][:limit]

    async def client(self, request: Request, caller: Caller) -> Json:
        """One client, or with ?group=1 a group: coverage of every class, what happened, and its keys."""
        name = request.path_params.get("name") or read_text(request, "name")
        return await self._shown(name, group=read_flag(request, "group"))

    async def _shown(self, name: str, *, group: bool) -> Json:
        standing = await self._thread(lambda: self._ledger.standing(name, group=group))
        history, keys = await asyncio.gather(self._history.get(), self._keys.get())
        events = history.about(name, group=group) if history else []
        own = () if group else (keys or {}).get(name, ())
        return show(standing, self._bundle, own) | {
            "known": standing.on_record,
            "coverage": show_classes(standing, self._bundle),
            "events": [event_facts(e) for e in reversed(events[-MAX_LINES:])],
        }

    async def records(self, request: Request, caller: Caller) -> Json:
        """The newest recorded points of a client in class ?label=, relative to the class's disc, and their radius."""
        name, group, label = (
            read_text(request, "name"),
            read_flag(request, "group"),
            read_number(request, "label", None),
        )
        if label >= self._service.spec.classes:
            raise ServeError(400, f"no class {label}: the model has {self._service.spec.classes}")
        standing = Standing(name, group)
        radius = radius_of(limits_of(standing, self._bundle), label)
        if group:
            return {"points": [], "total": 0, "radius": radius, "note": "the points of groups cannot be read"}
        found = (await self._thread(self._ledger.records, name)).get(label, ())
        newest = [[float(x), float(y)] for x, y in found[-MAX_POINTS:]]
        return {"points": newest, "total": len(found), "radius": radius, "note": None}

    async def events(self, request: Request, caller: Caller) -> Json:
        """The newest ?limit= events, alarms and what operators did, newest first."""
        limit = read_number(request, "limit", MAX_LINES, most=MAX_LINES)
        history = await self._history.get()
        events = history.events if history else []
        return {"events": [event_facts(e) for e in reversed(events[-limit:])] if limit else [], "total": len(events)}

    async def pardon(self, request: Request, caller: Caller) -> Json:
        """Clear the alarm and wealth of {name}, or of a {group: true}."""
        body = await read_body(request, required={"name": str}, optional={"group": bool})
        name, group = body["name"], body.get("group", False)

        def act() -> None:
            if not self._ledger.standing(name, group=group).on_record:
                raise ServeError(404, f"no {'group' if group else 'client'} '{name}' in this ledger")
            self._ledger.pardon(name, caller.client, group=group)

        return await self._done(act, name, group=group)

    async def allow(self, request: Request, caller: Caller) -> Json:
        """Put {name} on the allow-list, or take it off: {allowed}."""
        body = await read_body(request, required={"name": str, "allowed": bool})
        name, allowed = body["name"], body["allowed"]
        return await self._done(lambda: self._ledger.allow(name, caller.client, allowed=allowed), name)

    async def budget(self, request: Request, caller: Caller) -> Json:
        """Give {name} a budget of its own: {extra_answers, threshold}; null is the guard's, and two take it back."""
        body = await read_body(
            request, required={"name": str, "extra_answers": int | None, "threshold": float | int | None}
        )
        name = body.pop("name")
        own = Budget(**body) if any(value is not None for value in body.values()) else None
        return await self._done(lambda: self._ledger.set_budget(name, own, caller.client), name)

    async def revoke(self, request: Request, caller: Caller) -> Json:
        """Revoke the key of this {id}, or all keys of this {name}."""
        body = await read_body(request, required={}, optional={"name": str, "id": str})
        if len(body) != 1:
            raise ServeError(400, "expected name or id")
        gone = await self._thread(self._service.keys.revoke, *body.values())
        self._keys.forget()
        return {"revoked": [key.id for key in gone]}

    async def acknowledge(self, request: Request, caller: Caller) -> Json:
        """Note that somebody has seen an {event}."""
        event = (await read_body(request, required={"event": int}))["event"]
        await self._thread(self._ledger.acknowledge, event, caller.client)
        self._history.forget()
        return {"acknowledged": event, "actor": caller.client}

    async def _done(self, act: Callable[[], None], name: str, *, group: bool = False) -> Json:
        """Act in a thread, and answer with how the client stands now."""
        await self._thread(act)
        self._history.forget()
        standing = await self._thread(lambda: self._ledger.standing(name, group=group))
        if accounts := await self._accounts.get():
            accounts.put(standing)  # reading all of them again may take long
        return await self._shown(name, group=group)
