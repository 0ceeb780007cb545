"""The server as a process: REST and gRPC on one event loop, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queen.errors import OptionError
from queen.serve.app import App
from queen.serve.grpc import start_grpc
from queen.serve.http import make_limited_protocol
from queen.serve.lease import acquire
from queen.serve.limits.files import fit_connections
from queen.serve.limits.grpc_connections import GrpcConnections
from queen.serve.limits.refusal_log import RefusalLog
from queen.serve.network import TrustedProxies
from queen.serve.service import Service
from queen.serve.settings import MEMORY, Settings
from queen.serve.telemetry import log

NO_PROTECTION = "policy none protects nothing: every answer is the model's own"


@dataclass(frozen=True)
class Ports:
    """Where the server listens; 0: not at all."""

    rest: int
    grpc: int
    metrics: int


class _UvicornServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: `serve` alone decides when to stop, and with which exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings, *, on_start: Callable[[Service, Ports], None] = lambda service, ports: None) -> None:
    """Serve until SIGTERM or Ctrl-C; requests accepted by then are still answered."""
    log.setup(settings.log_level, json=settings.log_format == "json")
    ports = 1 + (settings.grpc_port >= 0) + (settings.metrics_port >= 0)
    settings = settings.model_copy(update={"max_connections": fit_connections(settings.max_connections, ports)})
    service = Service.open(settings)
    config = uvicorn.Config("", log_config=None)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(service, on_start))


async def _serve(service: Service, on_start: Callable[[Service, Ports], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(service) as ports:
        log.log(
            "serving",
            model=service.spec.name,
            policy=service.guard.policy.name,
            observe=service.guard.bundle.observe,
            ledger=service.settings.ledger_name,
            rest=ports.rest,
            grpc=ports.grpc,
            metrics=ports.metrics,
        )
        for warning in start_warnings(service):
            log.log("warning at start", level="warning", why=warning)
        on_start(service, ports)
        await stop.wait()
        log.log("stopping")
    log.log("stopped")


def start_warnings(service: Service) -> list[str]:
    """What an operator must know from the first moment on, a sentence each: this server protects less than usual."""
    warnings = []
    if service.guard.policy.name == "none":
        warnings.append(NO_PROTECTION)
    elif service.guard.bundle.observe:
        warnings.append("observe is on: clients are judged and recorded, but every answer is the model's own")
    if service.settings.ledger_name == MEMORY:
        warnings.append("the ledger is in memory: when this server stops, all that clients have seen is forgotten")
    return warnings


@contextlib.asynccontextmanager
async def running(service: Service) -> AsyncIterator[Ports]:
    """Run a server; at the end it stops listening, answers the requests it has accepted, and releases everything."""
    settings = service.settings
    sockets = [_listen(settings.host, settings.port)]
    if settings.metrics_port >= 0:
        sockets.append(_listen("127.0.0.1", settings.metrics_port))
    lease = contextlib.ExitStack()
    grpc_server, grpc_port, grpc_watch = None, 0, None
    try:
        plain = settings.model_copy(update={"tls_cert": None, "tls_key": None})  # loopback needs no encryption
        rest = _UvicornServer(uvicorn_config(App(service), settings))
        servers = [rest, *(_UvicornServer(uvicorn_config(_metrics_app(service), plain)) for _ in sockets[1:])]
        lease.enter_context(acquire(settings.ledger_url, _url(settings, sockets[0])))
        await service.start()
        if settings.grpc_port >= 0:
            grpc_server, grpc_port = await start_grpc(service, settings.host, settings.grpc_port)
            grpc_watch = asyncio.create_task(_watch_grpc(settings, grpc_port))
        tasks = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
        while not all(server.started for server in servers):
            if any(task.done() for task in tasks):
                await asyncio.gather(*tasks)  # raises what went wrong
            await asyncio.sleep(0.01)
        ports = [sock.getsockname()[1] for sock in sockets]
        yield Ports(ports[0], grpc_port, ports[1] if len(ports) > 1 else 0)
        service.drain()
        for server in servers:
            server.should_exit = True
        if grpc_server is not None:
            await grpc_server.stop(settings.shutdown_timeout)
        await asyncio.gather(*tasks)
    finally:
        if grpc_watch is not None:
            grpc_watch.cancel()
        await service.stop()
        lease.close()
        for sock in sockets:
            sock.close()


async def _watch_grpc(settings: Settings, port: int) -> None:
    """Close connections over gRPC that are too many, while the server runs."""
    await GrpcConnections(
        port,
        settings.max_connections,
        settings.address_connections,
        proxies=TrustedProxies(settings.trusted_proxy),
        note=RefusalLog("gRPC connections refused").note,
    ).watch()


def _url(settings: Settings, sock: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{sock.getsockname()[1]}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError as error:
        raise OptionError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return sock


def uvicorn_config(app: Any, settings: Settings) -> uvicorn.Config:
    """uvicorn's configuration for an ASGI application, with the limits of the settings."""
    config = uvicorn.Config(
        app,
        http=make_limited_protocol(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=int(settings.shutdown_timeout) or 1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise OptionError(
            f"cannot use certificate '{settings.tls_cert}' with key '{settings.tls_key}': {error}"
        ) from error
    return config


def _metrics_app(service: Service) -> Starlette:
    """An application with nothing but /metrics, for a scraper on this machine."""

    async def metrics(request: Request) -> Response:
        body, content_type = service.metrics.render()
        return Response(body, headers={"content-type": content_type})

    return Starlette(routes=[Route("/metrics", metrics)])
