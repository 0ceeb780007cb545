"""Commands for a ledger as a whole: let another bundle take it over."""

from __future__ import annotations

import getpass
from contextlib import closing
from dataclasses import asdict, replace
from typing import Annotated

import typer

from queen.cli.shared import Actor, Folder, Json, ModelOption, app, open_existing, out, print_json
from queen.errors import OptionError

ledger = typer.Typer(help="Look after a ledger as a whole.", no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(ledger, name="ledger")


@ledger.command(epilog="Example: `queen ledger rebind redis://10.0.0.5:6379/0 retrained --actor olga`")
def rebind(
    url: Annotated[str, typer.Argument(metavar="LEDGER", help="A SQLite file, sqlite:///FILE or redis://HOST.")],
    bundle: Folder,
    radius: Annotated[float | None, typer.Option(help="As `queen serve --radius`, if the server has it.")] = None,
    model: ModelOption = None,
    prefix: Annotated[str | None, typer.Option(help="With Redis, what all keys of the ledger begin with.")] = None,
    allow_volatile: Annotated[
        bool, typer.Option("--allow-volatile", help="Also a Redis that may lose what it acknowledged.")
    ] = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Let a bundle take over a ledger that is for another one, for example after the model was trained again.

    Alarms, evidence, budgets, the allow-list, events and counts stay. If the new bundle has other maps, coverage and
    records are forgotten, and servers of the old one stop answering. It may be interrupted, and run again.
    """
    from queen.bundle.binding import binding_of
    from queen.bundle.binding import rebind as take_over
    from queen.bundle.store import load_bundle
    from queen.serve.lease import owner

    loaded = load_bundle(bundle, model)
    if radius is not None:
        loaded = loaded.with_options(limits=replace(loaded.limits, radius=radius))
    if address := owner(url):
        raise OptionError(f"the server at {address} uses this ledger: stop it first, it belongs to the old bundle")
    options = {"prefix": prefix, "allow_volatile": allow_volatile or None}
    with closing(open_existing(url, **{name: value for name, value in options.items() if value is not None})) as store:
        result = take_over(store, binding_of(loaded), getpass.getuser() if actor is None else actor)
    if as_json:
        print_json(asdict(result))
        return
    listed = " and ".join(map(str, result.accepted))
    coverage = "; coverage and records of the old maps are forgotten" if result.forgot_coverage else ""
    out.print(f"the ledger is {'now' if result.changed else 'already'} for {listed}{coverage}", soft_wrap=True)
