"""Wrong answers are for the accused alone: whoever shares a name with them, or a group, is refused instead."""

from __future__ import annotations

from queen.guard import Guard
from queen.policy import Action

WRONG_ANSWERS = ("decoy", "reverse")


def refuse_neighbours(guard: Guard, *, anonymous: bool) -> tuple[Guard, list[str]]:
    """The guard as it may be served, and what to tell the operator at the start, a sentence each.

    Without keys (`anonymous`) a client is a network prefix, so accused and neighbours look alike: where the operator
    chose wrong answers, everybody is refused. The ledger itself sees to it that an accused group is only refused.
    """
    advice: list[str] = []
    if guard.bundle.observe:
        return guard, advice
    if guard.policy.name != "sentinel":
        shared = "network prefixes" if anonymous else "groups" if guard.bundle.sentinel.groups else ""
        if shared and Action.REVERSE in guard.policy.possible:
            advice.append(
                f"policy {guard.policy.name} gives wrong answers once a class is spent, and {shared} share what they "
                "have spent, so neighbours get them too: --policy sentinel refuses them instead"
            )
        return guard, advice
    if anonymous:
        chosen = {name: getattr(guard.bundle.sentinel, name) for name in ("on_alarm", "on_spent")}
        for name, choice in chosen.items():
            if choice in WRONG_ANSWERS:
                guard = guard.with_options(**{name: "refuse"})
                advice.append(
                    f"{name} is refuse, not {choice}: without keys a client is a network prefix, and neighbours there "
                    "must not get wrong answers"
                )
    sentinel = guard.bundle.sentinel
    enforcing = [kind for kind, group in sentinel.groups.items() if group.enforce_alarm]
    if enforcing and sentinel.on_alarm not in ("refuse", "observe"):
        advice.append(
            f"members of an accused group ({', '.join(enforcing)}) are refused: on_alarm {sentinel.on_alarm} is for "
            "clients who stand accused themselves"
        )
    return guard, advice
