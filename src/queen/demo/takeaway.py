"""What to remember of the demo if one reads nothing else: a few sentences, good news or bad, from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queen.demo.summary import best_thieves

HARDLY = 0.02  # a difference in accuracy that is not worth a word
WHO = {
    "foreign": "A thief with foreign images",
    "own_kind": "A thief with images of the victim's own kind",
    "many_accounts": "A thief with many accounts",
}
WATCHED = "sentinel"  # the policy that the demo's bundle has


def takeaway(results: Mapping[str, Any]) -> str:
    """How good copies are behind the sentinel and without protection, and what that costs honest clients."""
    plain, watched = (best_thieves(results, policy) for policy in ("undefended", WATCHED))
    sentences = []
    for kind, who in WHO.items():
        without, behind = plain[kind] or plain["foreign"], watched[kind]
        if without is not None and behind is not None:
            sentences.append(_thief(who, without.accuracy, behind.accuracy, results["chance"]))
        elif without is not None and kind != "many_accounts":
            unprotected = f"without protection its copy gets {without.accuracy:.1%} right"
            sentences.append(f"{who} gets nothing to learn from; {unprotected}.")
    return " ".join([*sentences, _honest(results)])


def _thief(who: str, without: float, behind: float, chance: float) -> str:
    """What protection does to one thief: who keeps half of what a copy has above chance is not held off."""
    if behind > without - HARDLY:
        effect = "is not stopped"
    elif behind - chance > (without - chance) / 2:
        effect = "is hindered, not stopped"
    else:
        effect = "is held off"
    figures = f"{behind:.1%} of held-out digits right behind the sentinel, {without:.1%} without protection"
    return f"{who} {effect}: its copy gets {figures}."


def _honest(results: Mapping[str, Any]) -> str:
    """What honest clients pay, and how many of them are accused."""
    right, before = (results["policies"][policy]["benign_accuracy"] for policy in (WATCHED, "undefended"))
    pays = "An honest client pays for it" if right < before - HARDLY else "An honest client notices next to nothing"
    clients = results["sentinel"]["benign_clients"].values()
    accused, total = (sum(one[key] for one in clients) for key in ("accused", "clients"))
    whom = f"{accused or 'none'} of {total:,} simulated honest clients {'was' if accused < 2 else 'were'} accused"
    return f"{pays}: {right:.1%} of its answers are right ({before:.1%} without protection), and {whom}."
