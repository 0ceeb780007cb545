"""`queen guard`: the server of `queen serve` in front of a model that another server runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queen.cli.serve import register

if TYPE_CHECKING:
    from queen.serve.settings import Settings

EPILOG = """Example: `queen guard bundle --upstream http://triton:8000 --upstream-model digits`

The upstream must give features and logits as outputs, and nobody but this server may reach it: who can ask it directly
goes around the guard. Clients need a key: `queen keys new alice`. Settings also come from the environment
(QUEEN_UPSTREAM=grpc://triton:8001) and from a file (`--config guard.yaml`)."""


def _find_settings() -> type[Settings]:
    from queen.serve.upstream.settings import GuardSettings

    return GuardSettings


register("guard", _find_settings, "Guard a model that runs on another server of the Open Inference Protocol.", EPILOG)
