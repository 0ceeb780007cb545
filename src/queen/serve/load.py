"""The guard that a server puts before its model, from the bundle and the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from warnings import warn

from queen.errors import CalibrationError, ProtectionWarning
from queen.guard import Guard, load
from queen.serve.settings import Settings
from queen.serve.telemetry.log import log
from queen.serve.unprotected import Unprotected


def load_guard(settings: Settings, **where: Any) -> Guard:
    """The bundle's guard with the options of the settings; `where` is passed on to `queen.load`."""
    names = ("policy", "observe", "alpha", "on_alarm", "on_spent", "after_alarm", "digits")
    changes = {name: value for name in names if (value := getattr(settings, name)) is not None}
    for name, endless in (("after_alarm", -1), ("digits", 0)):
        if changes.get(name) == endless:
            changes[name] = None
    unprotected = changes.get("policy") == "none"
    if unprotected:
        del changes["policy"]
    try:
        guard = load(settings.bundle, settings.model, device=settings.device, **where, **changes)
    except CalibrationError as error:
        raise CalibrationError(f"{error}; or serve another policy: --policy paper|strict") from error
    limits = guard.bundle.limits
    own_limits = {
        name: value
        for name in ("radius", "threshold", "extra_answers")
        if (value := getattr(settings, name)) is not None
    }
    if own_limits:
        limits = replace(limits, **own_limits)
        guard = guard.with_options(limits=limits)
    if settings.groups:
        groups = {kind: group.with_defaults(limits) for kind, group in settings.groups.items()}
        guard = guard.with_options(groups=groups)
    if unprotected:
        return Unprotected(guard.bundle, ledger=guard.ledger)
    weakness = guard.weakness
    if weakness and not settings.weak:
        raise CalibrationError(
            f"{weakness}; or serve it as it is: --weak, or serve another policy: --policy paper|strict"
        )
    if weakness:
        warn(weakness, ProtectionWarning, stacklevel=2)
        log("weak sentinel", level="warning", why=weakness)
    return guard
