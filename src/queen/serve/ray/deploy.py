"""`queen serve --ray`: the same server several times on a Ray cluster, all of them with one ledger in Redis."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from queen.errors import OptionError, QueenError
from queen.ray_cluster import LOCAL, connected, find_ray
from queen.serve.ray.replica import application, logging_of, mark_of, needs
from queen.serve.settings import Settings
from queen.serve.telemetry import log

PREFIX = "queen-"  # of the names of our applications on a cluster
START = 600.0  # seconds until all replicas must answer
LOOK_EVERY = 1.0  # seconds between looks at the application
LOST = 60.0  # seconds until a request gets up waiting, say for a replica to start; the model is faster
FOR_RAY = {
    "FORWARDED_ALLOW_IPS": "",  # else the proxies believe X-Forwarded-For of clients on their machine
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # else a proxy that starts slowly is killed after 5 s, over and over
}


def serve_on_ray(settings: Settings, *, on_start: Callable[[str], None] = lambda address: None) -> None:
    """Serve on the cluster at RAY_ADDRESS, or on one of our own, until SIGTERM or Ctrl-C; `on_start` gets the URL.

    Ray Serve is ours alone meanwhile: its address is the same for all that it serves. A cluster that was there before
    stays; what an earlier run has left on it is replaced.
    """
    log.setup(settings.log_level, json=settings.log_format == "json")
    ray, serve = find_ray(), _find_serve()
    settings = _same_everywhere(settings)
    mark = mark_of(settings.bundle)
    address = os.environ.get("RAY_ADDRESS") or LOCAL
    with connected(ray, address, runtime_env={"env_vars": FOR_RAY}), _stop_signals() as stop:
        _check_room(ray, settings)
        _make_way(serve)
        settings = _with_port(settings)
        try:
            serve.start(proxy_location="EveryNode", http_options=_http(settings), logging_config=logging_of(settings))
        except (ray.exceptions.RayError, TimeoutError) as error:
            why = " ".join(str(error).split())[:300]
            raise QueenError(
                f"Ray's HTTP proxies did not start; is the cluster busy or short of memory? {why}"
            ) from error
        name = PREFIX + secrets.token_hex(4)
        try:
            target = serve.RunTarget(application(serve, settings, mark), name=name)
            serve.run_many([target], wait_for_applications_running=False)
            _wait_and_watch(serve, name, settings, stop, on_start)
        finally:
            if name in _applications(serve):
                serve.shutdown()
    log.log("stopped")


def _find_serve() -> Any:
    try:
        from ray import serve  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(f"--ray needs Ray Serve ({error}): pip install 'queen[ray]'") from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what matters of it is in our own log
    return serve


def _same_everywhere(settings: Settings) -> Settings:
    """Replicas run in folders of their own, behind proxies that speak HTTP alone."""
    if settings.metrics_port >= 0:
        raise OptionError("replicas may share a machine, so none has a metrics port: ask /metrics with an admin key")
    log.log("REST only: there is no gRPC on Ray")
    return settings.model_copy(
        update={
            "bundle": settings.bundle.absolute(),
            "record": settings.record and settings.record.absolute(),
            "device": settings.device.partition(":")[0],  # a replica sees no GPU but its own
            "grpc_port": -1,
        }
    )


def _check_room(ray: Any, settings: Settings) -> None:
    """A cluster that is too small would wait for ever."""
    there, needed = ray.cluster_resources(), needs(settings)
    for kind, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        if settings.replicas * needed[option] > there.get(kind, 0):
            raise OptionError(
                f"{settings.replicas} replicas need {settings.replicas * needed[option]} {kind}s, and this Ray cluster "
                f"has {there.get(kind, 0):g}: fewer --replicas, or more nodes"
            )


def _make_way(serve: Any) -> None:
    """End what an earlier run has left; never what others serve."""
    there = _applications(serve)
    others = sorted(name for name in there if not name.startswith(PREFIX))
    if others:
        raise OptionError(
            f"this cluster serves {', '.join(others)} already, and all applications of a cluster share one address: "
            "take another cluster, or end them with 'serve shutdown'"
        )
    if there:
        log.log("replacing", level="warning", applications=sorted(there))
    serve.shutdown()


def _applications(serve: Any) -> dict[str, Any]:
    return dict(serve.status().applications)


def _with_port(settings: Settings) -> Settings:
    """A port that is free here: Ray's proxies would share one in use, and answer every other request."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((settings.host, settings.port))
            return settings.model_copy(update={"port": sock.getsockname()[1]})
    except OSError as error:
        raise OptionError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from error


def _http(settings: Settings) -> dict[str, Any]:
    options = {
        "host": settings.host,
        "port": settings.port,
        "keep_alive_timeout_s": max(1, int(settings.keep_alive)),
        "request_timeout_s": settings.request_timeout + settings.max_wait + LOST,
    }
    if settings.tls_cert is None or settings.tls_key is None:
        return options
    return {
        **options,
        "ssl_certfile": str(settings.tls_cert.absolute()),
        "ssl_keyfile": str(settings.tls_key.absolute()),
    }


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()
    old = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _wait_and_watch(
    serve: Any, name: str, settings: Settings, stop: threading.Event, on_start: Callable[[str], None]
) -> None:
    """Say when all replicas answer, and afterwards when they do not; until told to stop."""
    before, deadline = "", time.monotonic() + START
    started = False
    while not stop.wait(LOOK_EVERY):
        found = _applications(serve).get(name)
        if found is None:
            raise QueenError(f"the application {name} was removed from the cluster by somebody else")
        status, why = str(getattr(found.status, "value", found.status)), _why(found)
        if status == "DEPLOY_FAILED" or (not started and time.monotonic() > deadline):
            raise QueenError(f"the replicas do not start ({status}): {why}")
        if status == "RUNNING" and not started:
            started = True
            log.log("serving", model=settings.model_name, rest=settings.port, grpc=0, replicas=settings.replicas)
            on_start(_url(settings))
        elif status != before:
            level = "warning" if started and status != "RUNNING" else "info"
            log.log("replicas", level=level, status=status, why=why)
        before = status
    log.log("stopping")


def _url(settings: Settings) -> str:
    scheme = "http" if settings.tls_cert is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{settings.port}"


def _why(found: Any) -> str:
    """What Ray has to say of an application; of a traceback the last line, which is ours."""
    texts = [found.message, *(deployment.message for deployment in found.deployments.values())]
    lines: list[str] = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("queen.errors.")]
    return (told or lines or ["waiting"])[-1].removeprefix("queen.errors.")[:500]
