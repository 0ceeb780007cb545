"""Commands for operators: how clients stand, who was accused, and what to do about it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.shared import (
    Actor,
    AdminKey,
    Client,
    Json,
    LedgerUrl,
    ServerUrl,
    app,
    is_from_command_line,
    open_existing,
    out,
    print_json,
    read_budget,
    table,
    this_actor,
)
from queen.errors import OptionError

MOST_BUDGETS = 20  # of clients' own that are listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from queen.ledger import Event, Ledger, Standing
    from queen.serve.admin.client import AdminClient

    Store = Ledger | AdminClient


@app.command(epilog="Example: `queen clients --ledger clients.sqlite --json`")
def clients(ledger: LedgerUrl = None, server: ServerUrl = None, key: AdminKey = None, as_json: Json = False) -> None:
    """Where every client and group stands, the most suspicious first."""
    with _open_store(ledger, server, key) as store:
        standings = store.standings()
        if as_json:
            print_json([asdict(standing) for standing in standings])
            return
        noted = _budget_events(store.events())
        now = store.now()
    header = ("name", "kind", "queries", "wealth", "state", "extra answers", "most covered class")
    lines = [_standing_line(standing, noted.get((standing.group, standing.name), {})) for standing in standings]
    out.print(table(header, lines, left=2))
    own = [standing for standing in standings if standing.budget is not None]
    for standing in own[:MOST_BUDGETS]:
        out.print(f"{standing.name} has a budget of its own: {_own_budget(standing, now)}", soft_wrap=True)
    if len(own) > MOST_BUDGETS:
        out.print(f"and {len(own) - MOST_BUDGETS} more have one: --json lists all")


@app.command(epilog="Example: `queen alarms --ledger clients.sqlite --acknowledge 3`")
def alarms(
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    acknowledge: Annotated[int | None, typer.Option(help="Mark the event of this number as seen.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what operators did, and what was seen.")] = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Who was accused, when and on what evidence; and whose budget is low or spent."""
    from queen.ledger.words import NOTICES

    with _open_store(ledger, server, key, changes=acknowledge is not None) as store:
        if acknowledge is not None:
            store.acknowledge(acknowledge, this_actor(actor))
        events = store.events()
    events = [e for e in events if everything or (e.what in NOTICES and e.acknowledged is None)]
    if as_json:
        print_json([vars(event) for event in events])
        return
    header = ("number", "time", "what", "who", "by", "queries", "wealth", "seen by")
    lines = [
        (
            str(e.id),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.at)),
            e.what,
            f"group {e.name}" if e.group else e.name,
            e.actor or e.client,
            str(e.queries),
            f"{e.wealth:.4g}",
            e.acknowledged or "",
        )
        for e in events
    ]
    out.print(table(header, lines, left=5))


@app.command(epilog="Example: `queen pardon alice --ledger clients.sqlite`")
def pardon(
    client: Client,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    group: Annotated[bool, typer.Option("--group", help="The name is that of a group.")] = False,
    actor: Actor = None,
) -> None:
    """Clear the alarm and wealth of a client, or of a group; what it has seen stays counted."""
    with _open_store(ledger, server, key, changes=True) as store:
        if not store.standing(client, group=group).on_record:
            kind = "group" if group else "client"
            raise OptionError(f"no {kind} '{client}' in this ledger: queen clients lists them")
        store.pardon(client, this_actor(actor), group=group)
    out.print(f"{client} is pardoned; what it has seen stays counted")


@app.command(epilog="Example: `queen allow monitoring --ledger clients.sqlite`")
def allow(
    client: Client,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    off: Annotated[bool, typer.Option("--off", help="Take the client off the list.")] = False,
    actor: Actor = None,
) -> None:
    """Put a client on the allow-list: always answered honestly, never a weight on its groups."""
    with _open_store(ledger, server, key, changes=True) as store:
        new = "" if store.standing(client).on_record else " (never seen so far)"
        store.allow(client, this_actor(actor), allowed=not off)
    out.print(f"{client}{new} is {'no longer ' if off else ''}on the allow-list")


@app.command(epilog="Example: `queen budget partner --extra-answers 2000/day --ledger clients.sqlite`")
def budget(
    client: Client,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    extra_answers: Annotated[
        str | None, typer.Option(help="Honest answers outside the discs or near a record; 2000/day renews.")
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(help="Share of a disc after which a class is spent; .2/week renews.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Back to the guard's limits.")] = False,
    actor: Actor = None,
) -> None:
    """Give one client a budget of its own."""
    if off == (extra_answers is not None or threshold is not None):
        raise OptionError("give --extra-answers, --threshold or both; or --off alone")
    own = None if off else read_budget(extra_answers, threshold)
    with _open_store(ledger, server, key, changes=True) as store:
        new = "" if store.standing(client).on_record else " (never seen so far)"
        store.set_budget(client, own, this_actor(actor))
    out.print(f"{client}{new} has {'the budget of the guard' if off else 'a budget of its own'}")


@app.command(epilog="Example: `queen revoke alice --home .queen`")
def revoke(
    name: Annotated[str, typer.Argument(help="A key's id, or a client's name for all its keys.", show_default=False)],
    home: Annotated[Path, typer.Option(envvar="QUEEN_HOME", help="Folder that the keys are kept in.")] = Path(".queen"),
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    key: AdminKey = None,
) -> None:
    """Revoke a key, or all keys of a client; every server knows within a second."""
    from queen.serve.access.key_store import open_keys
    from queen.serve.admin.client import AdminClient
    from queen.serve.lease import owner

    address = server or (owner(ledger or f"sqlite:///{home / 'ledger.sqlite'}") if key else None)
    if address is not None:
        revoked = AdminClient(address, _require_key(key, address)).revoke(name)
    else:
        store = open_keys(home, ledger or "")
        try:
            revoked = [revoked_key.id for revoked_key in store.revoke(name)]
        finally:
            store.close()
    out.print(f"revoked: {', '.join(revoked)}")


@contextmanager
def _open_store(ledger: str | None, server: str | None, key: str | None, *, changes: bool = False) -> Iterator[Store]:
    """The server, or a ledger that exists already; changes go through the server that uses the ledger, if one runs."""
    from queen.serve.admin.client import AdminClient
    from queen.serve.lease import owner

    ledger, server = _chosen(ledger, server)
    if (ledger is None) == (server is None):
        raise OptionError("say which clients: --ledger sqlite:///FILE (or redis://...), or --server http://HOST:PORT")
    address = server or (owner(ledger or "") if changes else None)
    if address is not None:
        store: Store = AdminClient(address, _require_key(key, address))
    else:
        store = open_existing(ledger or "")
    try:
        yield store
    finally:
        store.close()


def _chosen(ledger: str | None, server: str | None) -> tuple[str | None, str | None]:
    """Both as given; but if both are, one on the command line wins over one in the environment."""
    own = is_from_command_line(ledger, "QUEEN_LEDGER"), is_from_command_line(server, "QUEEN_SERVER")
    if ledger is None or server is None or own[0] == own[1]:
        return ledger, server
    return (ledger, None) if own[0] else (None, server)


def _require_key(key: str | None, address: str) -> str:
    if key is None:
        raise OptionError(f"the server at {address} wants an admin key: --key, or QUEEN_ADMIN_KEY in the environment")
    return key


def _budget_events(events: Iterable[Event]) -> dict[tuple[bool, str], dict[str, Event]]:
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


def _own_budget(standing: Standing, now: int) -> str:
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


def _standing_line(standing: Standing, noted: Mapping[str, Event]) -> tuple[str, ...]:
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
        "" if covered is None else f"{covered[0]}: {covered[1]:.3f}",
    )
