"""`queen guard`, and what commands share that use a network which another server runs; `serve` adds the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.errors import OptionError
from queen.extras import missing

if TYPE_CHECKING:
    from torch import nn

    from queen.serve.settings import Settings

SUMMARY = "Guard a model that runs on another server of the Open Inference Protocol."
EXAMPLE = "`queen guard bundle --upstream http://triton:8000 --upstream-model digits`"
BELOW = """The upstream must give features and logits as outputs. Nobody but this server may reach it: a client that can
ask it directly is not guarded. Clients need a key: `queen keys new alice`. Settings also come from the
environment (QUEEN_UPSTREAM=grpc://triton:8001) and from a file (`--config guard.yaml`); a flag always wins."""
UpstreamUrl = Annotated[
    str | None,
    typer.Option("--upstream", help="Server that runs the network: http://, https://, grpc:// or grpcs://HOST:PORT."),
]
UpstreamName = Annotated[str | None, typer.Option("--upstream-model", help="Name of the model on that server.")]
UpstreamFeatures = Annotated[
    str, typer.Option("--upstream-features", help="Its output with features; none: it gives logits alone.")
]
UpstreamLogits = Annotated[str, typer.Option("--upstream-logits", help="Its output with logits.")]
UpstreamHeaderFile = Annotated[
    Path | None,
    typer.Option(
        "--upstream-header-file",
        help="File with headers for that server, 'Name: value' lines; only its owner may read it.",
    ),
]


def upstream_model(
    url: str, weights: Path | None, head: str | None, header_file: Path | None, **options: Any
) -> nn.Module:
    """The network at a URL for `queen protect`; weights in a file are needed where its head cannot be solved for."""
    from queen.fit.files import read_weights
    from queen.secret import read_private

    try:
        from queen.serve.upstream.model import UpstreamModel
    except ModuleNotFoundError as error:
        raise missing(error, "serve") from error
    headers = [] if header_file is None else [line for line in read_private(header_file).splitlines() if line.strip()]
    try:
        model = UpstreamModel(url, headers=headers, **options)
    except TypeError as error:
        raise OptionError(f"cannot ask {url} so: {error}") from error
    if weights is not None:
        model.take_head(read_weights(weights), head or "head")
    return model


def find_guard_settings() -> type[Settings]:
    """The settings of the command."""
    from queen.serve.upstream.settings import GuardSettings

    return GuardSettings
