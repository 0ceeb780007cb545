"""The settings of `queen guard`: those of `queen serve`, and how to ask the upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from queen.secret import read_private
from queen.serve.settings import Settings


class GuardSettings(Settings):
    """All settings of `queen guard`; docs/upstream.md lists those that `queen serve` has not."""

    upstream: str | None = Field(
        None, description="The server to ask: http://, https://, grpc:// or grpcs://HOST:PORT; by default the bundle's."
    )
    upstream_model: str | None = Field(
        None, description="Name of the model upstream; not needed if the server says that it has one."
    )
    upstream_features: str | None = Field(
        None,
        description="Name of its output with features, or none for logits alone; by default the bundle's, or features.",
    )
    upstream_logits: str | None = Field(
        None, description="Name of its output with logits; by default the bundle's, or logits."
    )
    upstream_probabilities: str | None = Field(
        None, description="Name of its output with probabilities, if it gives no logits: their logarithms are taken."
    )
    upstream_input: str | None = Field(None, description="Name of its input, if it does not say.")
    upstream_header: tuple[str, ...] = Field(
        (), description="Header of every request upstream, 'Name: value'.", repr=False
    )
    upstream_header_file: Path | None = Field(
        None, description="File with such headers, one per line; only its owner may read it."
    )
    upstream_timeout: float | None = Field(
        None, gt=0, description="Seconds in which the upstream must answer; by default the bundle's, or 5."
    )
    upstream_max_batch: int | None = Field(
        None, ge=1, description="Most rows of a request upstream; more are divided; by default the bundle's, or 64."
    )
    upstream_binary: bool | None = Field(
        None, description="Send raw tensors over REST, or JSON; by default raw ones if the upstream says it takes them."
    )
    upstream_check: float = Field(
        5.0, gt=0, le=3600, description="Seconds between two checks that the upstream still runs the same model."
    )
    upstream_wait: float = Field(10.0, ge=0, description="Seconds to wait at the start for an upstream that is down.")

    @model_validator(mode="after")
    def _check_guard(self) -> GuardSettings:
        if self.ray:
            raise ValueError("queen guard does not run on Ray: start several of them on one Redis ledger")
        if self.model is not None:
            raise ValueError("the model of queen guard runs upstream: leave out --model")
        return self

    @property
    def upstream_options(self) -> dict[str, Any]:
        """What was set of the options of an `UpstreamModel`."""
        options = {
            "url": self.upstream,
            "model": self.upstream_model,
            "features": self.upstream_features,
            "logits": self.upstream_logits,
            "probabilities": self.upstream_probabilities,
            "input": self.upstream_input,
            "timeout": self.upstream_timeout,
            "max_batch": self.upstream_max_batch,
            "binary": self.upstream_binary,
            "headers": self.upstream_headers or None,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def upstream_headers(self) -> tuple[str, ...]:
        """Lines with all headers; read anew every time."""
        file = self.upstream_header_file
        lines = [] if file is None else read_private(file).splitlines()
        return (*self.upstream_header, *(line for line in lines if line.strip()))
