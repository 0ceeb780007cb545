"""What must not change: the ledger, the keys, and the answer to a golden query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from qa.serving.rest import ask, get, post
from tests.support.server import Server
from tests.support.serving import digits

ROWS = 4  # of the golden query
CLIENTS = ("alice", "attacker", "bystander")


def body_of(first: int = 0, rows: int = 1) -> bytes:
    """A good request for some held-out digits."""
    x = digits().roll(-first, 0)
    x = x.repeat(-(-rows // len(x)), 1, 1, 1)[:rows]
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.flatten().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def golden(server: Server, key: str) -> bytes:
    """What the server says to a query that never changes."""
    reply = ask(server.rest, post(body_of(0, ROWS), key))
    return b"%d %b" % (reply.status, reply.body)


@dataclass(frozen=True)
class State:
    """All that the server holds of its clients, as bytes on disk and as it tells operators."""

    files: Mapping[str, str]
    standings: Mapping[str, str]

    def changes(self, other: State) -> list[str]:
        """Names of files, and of clients, that differ."""
        pairs = ((self.files, other.files), (self.standings, other.standings))
        return [name for ours, theirs in pairs for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]

    def __len__(self) -> int:
        """How much there is to compare."""
        return len(self.files) + len(self.standings)


def state_of(server: Server, *files: Path, redis: str = "") -> State:
    """The state now; `files` are those of the ledger, `redis` is its address."""
    others = [path for path in server.home.rglob("*") if path.is_file() and path.suffix != ".witness"]  # says no names
    paths = [*files, *sorted(others)]
    contents = {path.name: path.read_bytes() for path in paths if path.exists()} | (_dump(redis) if redis else {})
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    pages = {name: ask(server.rest, get(f"/admin/client?name={name}", server.admin)) for name in CLIENTS}
    return State(digests, {name: page.body.decode() for name, page in pages.items()})


def _dump(url: str) -> dict[str, bytes]:
    """Everything in a Redis."""
    with Redis.from_url(url) as client:
        return {key.decode(): client.dump(key) or b"" for key in client.scan_iter()}


def queries_of(server: Server, client: str) -> int:
    """How many queries of a client are on record, as the server says."""
    return int(ask(server.rest, get(f"/admin/client?name={client}", server.admin)).json["queries"])


def failures_of(server: Server) -> float:
    """Requests that the server itself counts as 5xx."""
    text = ask(server.rest, get("/metrics", server.admin)).body.decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("queen_requests_total"))
    return sum(float(value) for name, _, value in lines if 'status="5' in name)
