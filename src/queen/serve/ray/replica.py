"""One replica, as Ray Serve runs it: the server's application, which opens, starts and stops its service itself."""

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
class Fingerprint:
    """Digests of what all replicas must have in common: the bundle and its secret, which they do not reveal."""

    bundle: str
    secret: str


def take_fingerprint(bundle: Path) -> Fingerprint:
    """The fingerprint of a bundle folder on this machine. A single server would draw a secret; here it must exist."""
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
    return Fingerprint(hashlib.sha256(manifest).hexdigest(), derive(read_secret(path), "replicas share this").hex())


class Replica:
    """An ASGI application whose service starts and stops with the ASGI lifespan."""

    def __init__(self, options: Mapping[str, Any], fingerprint: Fingerprint, name: str) -> None:
        settings = Settings(**options)
        log.setup(settings.log_level, json=settings.log_format == "json")
        own = take_fingerprint(settings.bundle)
        if own.bundle != fingerprint.bundle:
            raise BundleError(
                f"the bundle '{settings.bundle}' on {process_name()} is not the one that was deployed: copy it again"
            )
        if own.secret != fingerprint.secret:
            raise SecretError(
                f"the secret beside '{settings.bundle}' on {process_name()} is not the deployed one: copy it again"
            )
        self.service = Service.open(settings)
        self.service.metrics.label(replica=name)
        self._name = name
        self._app = App(self.service)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or (lifespan) run the service until the replica stops."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    def check(self) -> None:
        """Raise if only a new replica can help.

        A ledger that fails is no reason: while Redis is down a new replica could not even start, and requests would
        wait for one instead of getting an error at once. The service itself notices when the ledger has recovered.
        """
        if not self.service.batcher.alive:
            raise QueenError("the threads of this replica have ended")

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Ray sends start, requests and stop on one event loop, which the service relies on."""
        await receive()
        await self.service.start()
        log.log("replica started", replica=self._name, process=process_name())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.stop()
        log.log("replica stopped", replica=self._name, process=process_name())
        await send({"type": "lifespan.shutdown.complete"})


def ray_logging(settings: Settings) -> dict[str, bool]:
    """Ray Serve's logging options: by default it would write two lines per request."""
    return {"enable_access_log": settings.access_log}


def replica_resources(settings: Settings) -> dict[str, int]:
    """The processors and GPUs that a replica takes of its node."""
    return {"num_cpus": max(1, settings.threads), "num_gpus": int(settings.device.startswith("cuda"))}


def application(serve: Any, settings: Settings, fingerprint: Fingerprint) -> Any:
    """The application for Ray to run: settings travel as plain JSON, everything else is on the nodes."""
    options = settings.model_dump(mode="json")

    def build() -> Replica:
        return Replica(options, fingerprint, serve.get_replica_context().replica_tag)

    class Queen:
        """The class that Ray wants around an ASGI application."""

        async def check_health(self) -> None:
            """Raise if the replica must be replaced."""
            self.app.check()  # type: ignore[attr-defined]  # what `build` has built

    return serve.deployment(
        serve.ingress(build)(Queen),
        num_replicas=settings.replicas,
        ray_actor_options=replica_resources(settings),
        max_ongoing_requests=settings.max_connections,  # the replica itself refuses what is too much
        max_queued_requests=settings.max_connections,  # at a proxy whose replicas are gone
        graceful_shutdown_timeout_s=2 * settings.shutdown_timeout,  # to answer what waits, then to close
        graceful_shutdown_wait_loop_s=0.1,
        logging_config=ray_logging(settings),
    ).bind()
