"""The client for an address, and the model that it is to ask for."""

from __future__ import annotations

from queen.errors import OptionError
from queen.serve.upstream.client import Asking, UpstreamClient
from queen.serve.upstream.grpc import GrpcClient
from queen.serve.upstream.rest import RestClient


def new_client(asking: Asking, *, binary: bool | None) -> UpstreamClient:
    """A client over REST or gRPC, as the address says."""
    return GrpcClient(asking) if asking.address.is_grpc else RestClient(asking, binary=binary)


def find_model(asking: Asking) -> str:
    """The only model of the server; `OptionError` if it has others, or does not say."""
    client = new_client(asking, binary=None)
    try:
        models = client.models()
    finally:
        client.close()
    if not models or len(models) > 1:
        has = f"has {', '.join(models)[:200]}" if models else "does not say which models it has"
        raise OptionError(f"the server at {asking.address} {has}: name the model with --upstream-model")
    return models[0]
