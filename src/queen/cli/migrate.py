"""Commands for ledgers as a whole: `queen migrate` one of an older version, `queen accept` one that lost records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from queen.cli.shared import Actor, Json, app, out, print_json, this_actor


@app.command(epilog="Example: `queen migrate redis://10.0.0.5:6379/0 --prefix shop`")
def migrate(
    url: Annotated[
        str,
        typer.Argument(
            envvar="QUEEN_LEDGER", help="A SQLite file, sqlite:///FILE or redis://HOST.", show_default=False
        ),
    ],
    prefix: Annotated[str, typer.Option(help="With Redis, what all keys of the ledger begin with.")] = "queen",
    allow_volatile: Annotated[
        bool, typer.Option("--allow-volatile", help="Also a Redis that may lose what it acknowledged.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a ledger that an older version wrote to this version's layout, after its servers were stopped.

    Alarms, events, budgets, the allow-list, coverage and records stay; evidence starts anew. It may be interrupted, and
    run again.
    """
    from queen.ledger.open import migrate_ledger
    from queen.progress import Progress

    with Progress(None if as_json else True) as show, show.bar("clients and groups", None) as advance:
        result = migrate_ledger(url, prefix=prefix, allow_volatile=allow_volatile, advance=advance)
    if as_json:
        print_json(asdict(result))
        return
    out.print(f"{result.migrated} of {result.scopes} clients and groups were migrated; the ledger may be opened")


@app.command(epilog="Example: `queen accept 5f0c63f2a94b1d7e --ledger redis://10.0.0.5:6379/0`")
def accept(
    lost: Annotated[str, typer.Argument(help="The id that the server's error names.", show_default=False)],
    ledger: Annotated[str, typer.Option(help="A SQLite file, sqlite:///FILE or redis://HOST.", show_default=False)],
    home: Annotated[
        Path, typer.Option(envvar="QUEEN_HOME", help="Folder of the server, which remembers the id.")
    ] = Path(".queen"),
    force: Annotated[bool, typer.Option("--force", help="Also an id that nothing in that folder expects.")] = False,
    actor: Actor = None,
) -> None:
    """Accept that a ledger has lost records, so that its servers answer again; clients may regain what was forgotten.

    For a ledger that went back in time, was emptied or replaced, and whose newer copy is gone for good. Running servers
    know within a second (of a file that was replaced: when they are started again).
    """
    from contextlib import closing

    from queen.cli.lost import check_expected
    from queen.ledger import open_ledger

    if not force:
        check_expected(lost, ledger, home)
    with closing(open_ledger(ledger)) as store:
        new = store.accept(lost, this_actor(actor))
    out.print(f"the loss is accepted: what was {lost} is {new} from now on")
