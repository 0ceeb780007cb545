"""The upstream that a bundle is served with, from its recipe and the settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from queen.bundle.store import read_recipe
from queen.errors import OptionError, UpstreamError
from queen.serve.telemetry.log import log
from queen.serve.upstream.model import FACTORY, UpstreamModel
from queen.serve.upstream.settings import GuardSettings

Result = TypeVar("Result")
PAUSE = 0.5  # seconds between two attempts
HOPEFUL = ("unreachable", "late", "unready")  # what may be over in a moment


def make_upstream(settings: GuardSettings) -> UpstreamModel:
    """The bundle's upstream with what the settings change of it, or the settings' own."""
    recipe = read_recipe(settings.bundle)
    stored = recipe.args if recipe is not None and recipe.factory == FACTORY else {}
    options = {**stored, **settings.upstream_options}
    if "url" not in options:
        raise OptionError("name the server that runs the network: queen guard BUNDLE --upstream http://HOST:PORT")
    return UpstreamModel(**options)


def when_ready(upstream: UpstreamModel, action: Callable[[], Result], seconds: float) -> Result:
    """The action's result, tried again for so many seconds while the upstream is down."""
    deadline, logged = time.monotonic() + seconds, ""
    while True:
        try:
            return action()
        except UpstreamError as error:
            if error.kind not in HOPEFUL or time.monotonic() + PAUSE > deadline:
                raise UpstreamError(f"the upstream {upstream.address} cannot be used: {error}", error.kind) from error
            if error.kind != logged:
                log("waiting for the upstream", level="warning", upstream=str(upstream.address), error=str(error))
                logged = error.kind
            time.sleep(PAUSE)
