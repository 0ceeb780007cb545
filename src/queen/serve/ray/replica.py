"""What Ray Serve runs: the server's application, which opens, starts and stops its service by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queen.bundle.store import MANIFEST
from queen.errors import BundleError, QueenError, SecretError
from queen.secret import derive, read_secret, secret_path
from queen.serve.app import App, Message, Receive, Send
from queen.serve.service import Service, process_name
from queen.serve.settings import Settings
from queen.serve.telemetry import log


@dataclass(frozen=True)
class Mark:
    """What all replicas must have in common, as digests that give nothing away: the bundle, and its secret."""

    bundle: str
    secret: str


def mark_of(bundle: Path) -> Mark:
    """The mark of a bundle folder on this machine; unlike a lone server's, its secret must be there already."""
    try:
        manifest = (bundle / MANIFEST).read_bytes()
    except OSError as error:
        raise BundleError(
            f"cannot read the bundle '{bundle}' on {process_name()}: {error.strerror}; every node must have it there"
        ) from error
    path = secret_path(bundle)
    if not path.exists():
        raise SecretError(
            f"no secret '{path}' on {process_name()}: all replicas share one, so copy the file that lies beside the "
            "bundle to every node (chmod 600)"
        )
    return Mark(hashlib.sha256(manifest).hexdigest(), derive(read_secret(path), "replicas share this").hex())


class Replica:
    """An ASGI application that lives as long as its lifespan says."""

    def __init__(self, plain: Mapping[str, Any], mark: Mark, name: str) -> None:
        settings = Settings(**plain)
        log.setup(settings.log_level, json=settings.log_format == "json")
        own = mark_of(settings.bundle)
        if own.bundle != mark.bundle:
            raise BundleError(f"the bundle '{settings.bundle}' on {process_name()} is another one: copy it anew")
        if own.secret != mark.secret:
            raise SecretError(f"the secret beside '{settings.bundle}' on {process_name()} is another one: copy it anew")
        self.service = Service.open(settings)
        self.service.metrics.label(replica=name)
        self._name = name
        self._app = App(self.service)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request, or the whole life of the replica."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    def check(self) -> None:
        """Raise if nothing but a new replica helps.

        A ledger that fails is no reason: as long as Redis is away a new replica could not even start, and requests
        would wait for one instead of being told so. The service sees the ledger recover by itself.
        """
        if not self.service.batcher.alive:
            raise QueenError("the threads of this replica have ended")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Ray starts, asks for requests and stops on one event loop, so that the service may keep to it."""
        await receive()
        await self.service.start()
        log.log("replica started", replica=self._name, process=process_name())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.stop()
        log.log("replica stopped", replica=self._name, process=process_name())
        await send({"type": "lifespan.shutdown.complete"})


def logging_of(settings: Settings) -> dict[str, bool]:
    """Of Ray Serve, which by default writes a line a request, twice."""
    return {"enable_access_log": settings.access_log}


def needs(settings: Settings) -> dict[str, int]:
    """What a replica takes of its node."""
    return {"num_cpus": max(1, settings.threads), "num_gpus": int(settings.device.startswith("cuda"))}


def application(serve: Any, settings: Settings, mark: Mark) -> Any:
    """What Ray is to run: settings travel as plain JSON, everything else is on the nodes."""
    plain = settings.model_dump(mode="json")

    def build() -> Replica:
        return Replica(plain, mark, serve.get_replica_context().replica_tag)

    class Queen:
        """The class that Ray wants around an ASGI application."""

        async def check_health(self) -> None:
            """Raise if the replica must be replaced."""
            self.app.check()  # type: ignore[attr-defined]  # what `build` has built

    return serve.deployment(
        serve.ingress(build)(Queen),
        num_replicas=settings.replicas,
        ray_actor_options=needs(settings),
        max_ongoing_requests=settings.max_connections,  # the replica itself says when it has too much to do
        max_queued_requests=settings.max_connections,  # of a proxy whose replicas are gone
        graceful_shutdown_timeout_s=2 * settings.shutdown_timeout,  # to answer what waits, then to close
        graceful_shutdown_wait_loop_s=0.1,
        logging_config=logging_of(settings),
    ).bind()
