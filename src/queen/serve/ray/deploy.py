"""`queen serve --ray`: several replicas of the server on a Ray cluster, with one ledger in Redis."""

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
from queen.extras import install
from queen.parallel.ray_cluster import LOCAL, connected, find_ray, worker_device
from queen.serve.ray.replica import application, ray_logging, replica_resources, take_fingerprint
from queen.serve.settings import Settings
from queen.serve.telemetry import log

PREFIX = "queen-"  # of the names of our applications on a cluster
START = 600.0  # seconds until all replicas must answer
POLL = 1.0  # seconds between two looks at the application
GRACE = 60.0  # seconds that a request may wait beyond its own limits, for example for a replica to start
ENVIRONMENT = {  # of Ray's processes
    "FORWARDED_ALLOW_IPS": "",  # else the proxies trust X-Forwarded-For of clients on their machine
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # else a proxy that starts slowly is killed after 5 s, over and over
}


def serve_on_ray(settings: Settings, *, on_start: Callable[[str], None] = lambda address: None) -> None:
    """Serve on the cluster at RAY_ADDRESS, or on one of our own, until SIGTERM or Ctrl-C; `on_start` gets the URL.

    Nobody else can use Ray Serve on the cluster meanwhile: all applications share one address. A cluster that ran
    before keeps running; what an earlier run of ours has left on it is replaced.
    """
    log.setup(settings.log_level, json=settings.log_format == "json")
    ray, serve = find_ray(), _find_serve()
    settings = _for_replicas(settings)
    fingerprint = take_fingerprint(settings.bundle)
    address = os.environ.get("RAY_ADDRESS") or LOCAL
    with connected(ray, address, runtime_env={"env_vars": ENVIRONMENT}), _stop_signals() as stop:
        _check_room(ray, settings)
        _remove_leftovers(serve)
        settings = _with_port(settings)
        try:
            serve.start(
                proxy_location="EveryNode", http_options=_http_options(settings), logging_config=ray_logging(settings)
            )
        except (ray.exceptions.RayError, TimeoutError) as error:
            why = " ".join(str(error).split())[:300]
            raise QueenError(
                f"Ray's HTTP proxies did not start; is the cluster busy or short of memory? {why}"
            ) from error
        name = PREFIX + secrets.token_hex(4)
        try:
            target = serve.RunTarget(application(serve, settings, fingerprint), name=name)
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
        raise OptionError(f"--ray needs Ray Serve ({error}): {install('ray')}") from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # our own log has what matters
    return serve


def _for_replicas(settings: Settings) -> Settings:
    """The settings for replicas, which run in folders of their own, behind proxies that speak only HTTP."""
    if settings.metrics_port >= 0:
        raise OptionError("replicas may share a machine, so none has a metrics port: ask /metrics with an admin key")
    log.log("REST only: there is no gRPC on Ray")
    return settings.model_copy(
        update={
            "bundle": settings.bundle.absolute(),
            "home": settings.home.absolute(),  # for the witness of the ledger, which outlives Ray's own folders
            "record": settings.record and settings.record.absolute(),
            "webhook_secret_file": settings.webhook_secret_file and settings.webhook_secret_file.absolute(),
            "device": worker_device(settings.device),
            "grpc_port": -1,
        }
    )


def _check_room(ray: Any, settings: Settings) -> None:
    """Raise if the cluster is too small: Ray would wait for ever."""
    total, needed = ray.cluster_resources(), replica_resources(settings)
    for kind, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        if settings.replicas * needed[option] > total.get(kind, 0):
            raise OptionError(
                f"{settings.replicas} replicas need {settings.replicas * needed[option]} {kind}s, and this Ray cluster "
                f"has {total.get(kind, 0):g}: fewer --replicas, or more nodes"
            )


def _remove_leftovers(serve: Any) -> None:
    """End what an earlier run of ours has left; raise if others serve something on this cluster."""
    running = _applications(serve)
    others = sorted(name for name in running if not name.startswith(PREFIX))
    if others:
        raise OptionError(
            f"this cluster serves {', '.join(others)} already, and all applications of a cluster share one address: "
            "take another cluster, or end them with 'serve shutdown'"
        )
    if running:
        log.log("replacing", level="warning", applications=sorted(running))
    serve.shutdown()


def _applications(serve: Any) -> dict[str, Any]:
    return dict(serve.status().applications)


def _with_port(settings: Settings) -> Settings:
    """The settings with a port that is free here: Ray's proxies would share one in use and get half of its requests."""
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


def _http_options(settings: Settings) -> dict[str, Any]:
    options = {
        "host": settings.host,
        "port": settings.port,
        "keep_alive_timeout_s": max(1, int(settings.keep_alive)),
        "request_timeout_s": settings.request_timeout + settings.max_wait + GRACE,
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
    """Log when all replicas answer, and whenever that changes, until `stop` is set."""
    before, deadline = "", time.monotonic() + START
    started = False
    while not stop.wait(POLL):
        state = _applications(serve).get(name)
        if state is None:
            raise QueenError(f"the application {name} was removed from the cluster by somebody else")
        status, why = str(getattr(state.status, "value", state.status)), _explain(state)
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


def _explain(state: Any) -> str:
    """Ray's last message about an application; if it is a traceback of ours, its last line."""
    texts = [state.message, *(deployment.message for deployment in state.deployments.values())]
    lines: list[str] = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("queen.errors.")]
    return (errors or lines or ["waiting"])[-1].removeprefix("queen.errors.")[:500]
