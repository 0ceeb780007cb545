"""Where a client or group stands, as the words of a line: its state, its budget, its most covered class."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queen.cli.shared import share_of_disc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from queen.ledger import Event, Standing


def budget_events(events: Iterable[Event]) -> dict[tuple[bool, str], dict[str, Event]]:
    """What was noted last of everybody's extra answers ("budget") and classes ("class") since an operator set them.

    The limits are in the bundle, which these commands do not have: else `Standing.short_of` would say more.
    """
    noted: dict[tuple[bool, str], dict[str, Event]] = {}
    for event in events:
        who, kind = (event.group, event.name), event.what.partition(" ")[0]
        if event.what == "budget":
            noted.pop(who, None)
        elif event.what.endswith((" low", " spent")):
            noted.setdefault(who, {})[kind] = event
    return noted


def _short_of(standing: Standing, noted: Mapping[str, Event]) -> str:
    """The worst word that was noted and still holds; another bundle that takes the ledger over forgets coverage."""
    covered = max(standing.coverage.values(), default=0.0)
    still_true = [
        event
        for kind, event in noted.items()
        if kind == "budget" or covered >= max(event.coverage.values(), default=0.0)
    ]
    worst = max(still_true, key=lambda event: event.what.endswith("spent"), default=None)
    if worst is None:
        return ""
    renews = standing.extra_usage.at or standing.class_usage  # then it may have renewed since it was noted
    return worst.what + (time.strftime(" on %m-%d at %H:%M", time.localtime(worst.at)) if renews else "")


def own_budget(standing: Standing, now: int) -> str:
    """What an operator gave it, what is left of that, and when it renews.

    The guard's own limits are in its bundle, which these commands do not have.
    """
    from queen.ledger import Budget
    from queen.options import Limits

    own, parts = standing.budget or Budget(), []
    limits = own.over(Limits())
    if own.extra_answers is not None:
        used, most = standing.extra_used(limits, now), int(limits.extra_allowance.amount)
        renews = _renewal(standing.extra_renews(limits, now))
        parts.append(f"{own.extra_answers} extra answers, {used} used, {max(0, most - used)} left{renews}")
    if own.threshold is not None:
        parts.append(f"threshold {own.threshold}{_renewal(standing.classes_renew(limits, now))}")
    return "; ".join(parts)


def _renewal(renews: int | None) -> str:
    return "" if renews is None else f", renews {time.strftime('%Y-%m-%d %H:%M', time.localtime(renews))}"


def standing_line(standing: Standing, noted: Mapping[str, Event]) -> tuple[str, ...]:
    """The cells of `queen clients`."""
    covered = max(standing.coverage.items(), key=lambda item: item[1], default=None)
    accused = f"accused, {standing.after_alarm} since" if standing.after_alarm else "accused"
    state = "allowed" if standing.allowed else accused if standing.alarmed else _short_of(standing, noted)
    return (
        standing.name,
        "group" if standing.group else "client",
        str(standing.queries),
        f"{standing.wealth:.3g}",
        state,
        str(standing.extra_answers),
        "" if covered is None else f"{covered[0]}: {share_of_disc(covered[1])}",
    )
