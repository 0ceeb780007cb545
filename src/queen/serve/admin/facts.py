"""Plain facts about the bundle, the server, events and keys, as JSON for operators."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import queen
from queen.guard import Guard
from queen.ledger import Event, Ledger
from queen.options import Limits
from queen.price.stored import bundle_price_lines
from queen.serve.access.key import Key
from queen.serve.types import ModelSpec


def bundle_facts(guard: Guard, spec: ModelSpec, bar: float | None, calibration: int | None) -> dict[str, Any]:
    """What is served, and how it is protected.

    `bar` is the wealth that accuses, and `calibration` how many calibrations its ledger has met, this one included;
    both are None if nobody can be accused.
    """
    bundle = guard.bundle
    settings = bundle.sentinel
    return {
        "model": spec.name,
        "version": spec.version,
        "inputs": [vars(tensor) for tensor in spec.inputs],
        "classes": spec.classes,
        "class_names": bundle.class_names,
        "policy": guard.policy.name,
        "observe": bundle.observe,
        "answers": _action_names(guard),
        "limits": _limits(bundle.limits),
        "sentinel": {
            "alpha": settings.alpha,
            "bar": bar,
            "calibration": calibration,
            "on_alarm": settings.on_alarm,
            "on_spent": settings.on_spent,
            "after_alarm": settings.after_alarm,
            "digits": guard.digits,
            "scores": settings.scores,
            "margin": settings.margin,
            "groups": {
                kind: {**_limits(group.limits), "enforce_alarm": group.enforce_alarm}
                for kind, group in settings.groups.items()
            },
        },
        "certified": bundle.calibration is not None and bundle.calibration.certified,
        "statement": bundle.statement,
        "price": list(bundle_price_lines(bundle)) if guard.policy.name == bundle.policy else [],
        "warnings": list(bundle.report.get("warnings", [])),
        "device": str(bundle.probe.logits.device),
        "identity": bundle.identity[:12],
    }


def server_facts(
    ledger: Ledger, ledger_time: int, *, ready: bool, started: float, advice: Sequence[str]
) -> dict[str, Any]:
    """Which program runs, since when, on which ledger, whether it answers, and what operators should know.

    `ledger_time` is the time by which budgets renew.
    """
    now = time.time()
    kind = type(ledger).__name__.removesuffix("Ledger").lower()
    times = {"now": now, "ledger_time": ledger_time, "uptime": now - started}
    facts = {"version": queen.__version__, **times, "ledger": kind, "ready": ready}
    return facts | {"advice": list(advice)}


def event_facts(event: Event) -> dict[str, Any]:
    """An event as JSON, with pairs of class and CQS, the most covered first."""
    return {**vars(event), "coverage": sorted(event.coverage.items(), key=lambda item: (-item[1], item[0]))}


def keys_by_name(keys: Mapping[str, Key]) -> dict[str, list[dict[str, Any]]]:
    """Keys without their digests, by the client that they belong to, oldest first."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key in sorted(keys.values(), key=lambda key: key.created):
        by_name[key.name].append({
            "id": key.id,
            "groups": list(key.groups),
            "admin": key.admin,
            "created": key.created,
            "revoked": key.revoked,
        })  # fmt: skip
    return dict(by_name)


def _action_names(guard: Guard) -> dict[str, list[str]]:
    """How each verdict is answered: while there is budget, and without."""
    return {letter: [action.name.lower() for action in pair] for letter, pair in guard.policy.table.items()}


def _limits(limits: Limits) -> dict[str, Any]:
    return {"radius": limits.radius, "threshold": limits.threshold, "extra_answers": limits.extra_answers}
