"""`queen migrate`: a ledger of an older version becomes one of this version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from queen.cli.shared import AllowVolatile, Json, app, epilog, out, print_json


@app.command(epilog=epilog("`queen migrate redis://10.0.0.5:6379/0 --prefix shop`", "scopes migrated"))
def migrate(
    url: Annotated[
        str,
        typer.Argument(
            envvar="QUEEN_LEDGER", help="A SQLite file, sqlite:///FILE or redis://HOST.", show_default=False
        ),
    ],
    prefix: Annotated[str, typer.Option(help="With Redis, what all keys of the ledger begin with.")] = "queen",
    allow_volatile: AllowVolatile = False,
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
