"""What chosen clients have sent, as far as a query log tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from queen.core import inputs
from queen.serve.querylog.audit import joinable_batches
from queen.serve.querylog.format import LoggedRequest
from queen.types import Inputs

BATCH = 256


def traffic_by_client(log: Iterable[LoggedRequest], clients: Collection[str]) -> dict[str, list[Inputs]]:
    """The batches that each of these clients sent, in order; clients who sent nothing are missing."""
    requests: dict[str, list[LoggedRequest]] = {}
    for request in log:
        if request.client in clients:
            requests.setdefault(request.client, []).append(request)
    return {
        client: [inputs.join([request.inputs for request in part]) for part in joinable_batches(own, BATCH)]
        for client, own in sorted(requests.items())
    }
