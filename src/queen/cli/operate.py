"""Commands for operators: how clients stand, who was accused, and what to do about it."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.parts.standings import budget_events, own_budget, standing_line
from queen.cli.shared import (
    ALREADY_REVOKED,
    Actor,
    AdminKey,
    Client,
    Json,
    LedgerHere,
    LedgerUrl,
    ServerUrl,
    app,
    choose_store,
    epilog,
    err,
    is_typed,
    open_existing,
    out,
    print_json,
    print_table,
    read_budget,
    this_actor,
)
from queen.errors import OptionError

MOST_BUDGETS = 20  # of clients' own that are listed
NEVER_SEEN = " (never seen so far)"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queen.ledger import Ledger
    from queen.serve.admin.client import AdminClient

    Store = Ledger | AdminClient


@app.command(
    epilog=epilog(
        "`queen clients --ledger clients.sqlite`",
        "name group queries wealth alarmed after_alarm allowed extra_answers extra_usage class_usage coverage budget",
        listed=True,
    )
)
def clients(
    context: typer.Context,
    ledger: LedgerHere = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    as_json: Json = False,
) -> None:
    """List every client and group, the most suspicious first.

    Wealth is the evidence that a client steals. It stays small for a benign one; whoever brings it to the bar of the
    guard's certificate, some tens of thousands, is accused.
    """
    with _open_store(context, ledger, server, key) as store:
        standings = store.standings()
        if as_json:
            print_json([asdict(standing) for standing in standings])
            return
        noted = budget_events(store.events())
        now = store.now()
    header = ("name", "kind", "queries", "wealth", "state", "extra answers", "most covered class")
    lines = [standing_line(standing, noted.get((standing.group, standing.name), {})) for standing in standings]
    print_table(header, lines, left=2, empty="Nobody has asked yet, and no operator has named a client.")
    own = [standing for standing in standings if standing.budget is not None]
    for standing in own[:MOST_BUDGETS]:
        out.print(f"{standing.name} has a budget of its own: {own_budget(standing, now)}")
    if len(own) > MOST_BUDGETS:
        out.print(f"{len(own) - MOST_BUDGETS} more clients have budgets of their own: --json lists all of them")


@app.command(
    epilog=epilog(
        "`queen alarms --ledger clients.sqlite --acknowledge 3`",
        "id at what name group client actor queries wealth coverage acknowledged",
        listed=True,
    )
)
def alarms(
    context: typer.Context,
    ledger: LedgerHere = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    acknowledge: Annotated[int | None, typer.Option(help="Mark the event of this number as seen.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also events that are marked as seen, and what operators did.")
    ] = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Who was accused, when and on what evidence; and whose budget is low or spent."""
    from queen.ledger.words import NOTICES

    with _open_store(context, ledger, server, key, changes=acknowledge is not None) as store:
        if acknowledge is not None:
            store.acknowledge(acknowledge, this_actor(actor))
            err.print(f"event {acknowledge} is marked as seen")
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
    nothing = "no event at all" if everything else "no alarm and no warning about a budget that nobody has seen yet"
    print_table(
        header, lines, left=5, empty=f"There is {nothing}{'' if everything else '; --all shows older ones too'}."
    )


@app.command(epilog=epilog("`queen pardon alice --ledger clients.sqlite`", "name group pardoned"))
def pardon(
    context: typer.Context,
    client: Client,
    ledger: LedgerHere = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    group: Annotated[bool, typer.Option("--group", help="The name is that of a group.")] = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Clear the alarm and wealth of a client, or of a group; what it has seen stays counted."""
    with _open_store(context, ledger, server, key, changes=True) as store:
        if not store.standing(client, group=group).on_record:
            kind = "group" if group else "client"
            raise OptionError(f"no {kind} '{client}' in this ledger: queen clients lists them")
        store.pardon(client, this_actor(actor), group=group)
    if as_json:
        print_json({"name": client, "group": group, "pardoned": True})
        return
    out.print(f"{client} is pardoned; what it has seen stays counted")


@app.command(epilog=epilog("`queen allow monitoring --ledger clients.sqlite`", "name allowed known"))
def allow(
    context: typer.Context,
    client: Client,
    ledger: LedgerHere = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    off: Annotated[bool, typer.Option("--off", help="Take the client off the list.")] = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Put a client on the allow-list: it is always answered honestly, and its queries do not count for its groups."""
    with _open_store(context, ledger, server, key, changes=True) as store:
        before = store.standing(client)
        store.allow(client, this_actor(actor), allowed=not off)
    if as_json:
        print_json({"name": client, "allowed": not off, "known": before.on_record})
        return
    state = "is" if not off else "is no longer" if before.allowed else "was not"
    out.print(f"{client}{'' if before.on_record else NEVER_SEEN} {state} on the allow-list")


@app.command(
    epilog=epilog("`queen budget partner --extra-answers 2000/day --ledger clients.sqlite`", "name budget known")
)
def budget(
    context: typer.Context,
    client: Client,
    ledger: LedgerHere = None,
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
    as_json: Json = False,
) -> None:
    """Give one client a budget of its own."""
    if off == (extra_answers is not None or threshold is not None):
        raise OptionError("give --extra-answers, --threshold or both; or --off alone")
    own = None if off else read_budget(extra_answers, threshold)
    with _open_store(context, ledger, server, key, changes=True) as store:
        known = store.standing(client).on_record
        store.set_budget(client, own, this_actor(actor))
    if as_json:
        print_json({"name": client, "budget": None if own is None else vars(own), "known": known})
        return
    new = "" if known else NEVER_SEEN
    out.print(f"{client}{new} has {'the budget of the guard' if off else 'a budget of its own'}")


@app.command(epilog=epilog("`queen revoke alice --home .queen`", "revoked"))
def revoke(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A key's id, or a client's name for all its keys.", show_default=False)],
    home: Annotated[Path, typer.Option(envvar="QUEEN_HOME", help="Folder that the keys are kept in.")] = Path(".queen"),
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    key: AdminKey = None,
    as_json: Json = False,
) -> None:
    """Revoke a key, or all keys of a client; every server knows within a second."""
    from queen.serve.access.key_store import open_keys
    from queen.serve.admin.client import AdminClient
    from queen.serve.lease import owner

    if is_typed(context, "home"):  # what the environment names is somewhere else
        ledger = ledger if is_typed(context, "ledger") else None
        server = server if is_typed(context, "server") else None
    ledger, server = choose_store(context, ledger, server)
    address = server or (owner(ledger or f"sqlite:///{home / 'ledger.sqlite'}") if key else None)
    if address is not None:
        revoked = AdminClient(address, _require_key(key, address)).revoke(name)
    else:
        store = open_keys(home, ledger or "")
        try:
            revoked = [revoked_key.id for revoked_key in store.revoke(name)]
        finally:
            store.close()
    if as_json:
        print_json({"revoked": revoked})
    elif revoked:
        out.print(f"revoked: {', '.join(revoked)}")
    else:
        out.print(ALREADY_REVOKED.format(name=name))


@contextmanager
def _open_store(
    context: typer.Context, ledger: str | None, server: str | None, key: str | None, *, changes: bool = False
) -> Iterator[Store]:
    """The server, or a ledger that exists already; changes go through the server that uses the ledger, if one runs."""
    from queen.serve.admin.client import AdminClient
    from queen.serve.lease import owner

    ledger, server = choose_store(context, ledger, server)
    here = Path(os.environ.get("QUEEN_HOME") or ".queen") / "ledger.sqlite"
    if ledger is None and server is None and here.is_file():
        ledger = str(here)
    if (ledger is None) == (server is None):
        both = "" if ledger is None else ", not both (in the environment QUEEN_LEDGER and QUEEN_SERVER)"
        raise OptionError(f"say which clients: --ledger FILE (or redis://...), or --server http://HOST:PORT{both}")
    address = server or (owner(ledger or "") if changes else None)
    if address is not None:
        store: Store = AdminClient(address, _require_key(key, address))
    else:
        store = open_existing(ledger or "")
    try:
        yield store
    finally:
        store.close()


def _require_key(key: str | None, address: str) -> str:
    if key is None:
        raise OptionError(f"the server at {address} wants an admin key: --key, or QUEEN_ADMIN_KEY in the environment")
    return key
