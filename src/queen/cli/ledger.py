"""Commands for a ledger as a whole: another bundle takes it over, its losses or clock are accepted, it is migrated."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import asdict, replace
from os.path import realpath
from pathlib import Path
from typing import Annotated, Any

import typer

from queen.cli.shared import (
    Actor,
    AllowVolatile,
    Folder,
    Json,
    ModelOption,
    app,
    epilog,
    make_group,
    open_existing,
    out,
    print_json,
    this_actor,
)
from queen.errors import OptionError

ledger = make_group("Look after a ledger as a whole.")
app.add_typer(ledger, name="ledger")

Url = Annotated[
    str,
    typer.Option(
        "--ledger", envvar="QUEEN_LEDGER", help="A SQLite file, sqlite:///FILE or redis://HOST.", show_default=False
    ),
]
Prefix = Annotated[str | None, typer.Option(help="With Redis: the prefix of all keys of the ledger.")]


@ledger.command(
    epilog=epilog(
        "`queen ledger rebind retrained --ledger redis://10.0.0.5:6379/0 --actor olga`",
        "changed forgot_coverage accepted",
    )
)
def rebind(
    bundle: Folder,
    url: Url,
    radius: Annotated[
        float | None, typer.Option(help="The radius of `queen serve --radius`, if you set one there.")
    ] = None,
    model: ModelOption = None,
    prefix: Prefix = None,
    allow_volatile: AllowVolatile = False,
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
    with closing(open_existing(url, **_options(prefix, allow_volatile))) as store:
        result = take_over(store, binding_of(loaded), this_actor(actor))
    if as_json:
        print_json(asdict(result))
        return
    listed = " and ".join(map(str, result.accepted))
    coverage = "; coverage and records of the old maps are forgotten" if result.forgot_coverage else ""
    out.print(f"the ledger is {'now' if result.changed else 'already'} for {listed}{coverage}", soft_wrap=True)


@ledger.command(
    epilog=epilog("`queen ledger accept 5f0c63f2a94b1d7e --ledger redis://10.0.0.5:6379/0`", "lost id made")
)
def accept(
    lost: Annotated[str, typer.Argument(metavar="ID", help="The id that the server's error names.")],
    url: Url,
    home: Annotated[
        Path, typer.Option(envvar="QUEEN_HOME", help="Folder of the server, which remembers the id.")
    ] = Path(".queen"),
    force: Annotated[
        bool, typer.Option("--force", help="Accept also an id that nothing in that folder expects.")
    ] = False,
    prefix: Prefix = None,
    allow_volatile: AllowVolatile = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Accept that a ledger has lost records, so that its servers answer again; what was lost no longer counts.

    For a ledger that went back in time, was emptied or replaced, and whose newer copy is gone for good. Where the file
    itself is gone, a new and empty one is made, and said so. Running servers know within a second (of a file that was
    replaced: when they are started again).
    """
    from queen.ledger import open_ledger
    from queen.ledger.witness import check_id
    from queen.serve.lease import lease_path

    check_id(lost)  # before a file is made
    if not force:
        check_expected(lost, url, home)
    beside = lease_path(url)
    made = beside is not None and not beside.with_suffix("").is_file()
    with closing(open_ledger(url, **_options(prefix, allow_volatile))) as store:
        new = store.accept(lost, this_actor(actor))
    if as_json:
        print_json({"lost": lost, "id": new, "made": made})
        return
    where = f"; there was no file '{url}', so a new and empty one was made" if made else ""
    out.print(f"the loss is accepted: the ledger {lost} has the id {new} from now on{where}", soft_wrap=True)


@ledger.command(epilog=epilog("`queen ledger clock .queen/ledger.sqlite --accept`", "now used_until accepted"))
def clock(
    url: Annotated[
        str, typer.Argument(metavar="LEDGER", envvar="QUEEN_LEDGER", help="A SQLite file, or redis://HOST.")
    ],
    accept: Annotated[bool, typer.Option("--accept", help="Continue with the clock as it is now.")] = False,
    prefix: Prefix = None,
    allow_volatile: AllowVolatile = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Show the time by which budgets renew, or accept a clock that is behind the one that the ledger was used with.

    For a file that refuses the clock, and a Redis whose clock was ahead. Nothing is given back: what was used after the
    present time counts until the present hour, day, week or month is over.
    """
    from queen.ledger.sqlite.clock import TIME, show_time
    from queen.serve.lease import lease_path, owner

    if accept and (address := owner(url)):
        raise OptionError(f"the server at {address} uses this ledger and goes on with its own clock: stop it first")
    any_clock = {"any_clock": True} if lease_path(url) is not None else {}
    with closing(open_existing(url, **any_clock, **_options(prefix, allow_volatile))) as store:
        used = int(store.fact(TIME) or 0) or None
        if accept:
            store.accept_clock(this_actor(actor))
        now = store.now()
    if as_json:
        print_json({"now": now, "used_until": used, "accepted": accept})
        return
    until = "" if used is None else f"; budgets that renew were used until {show_time(used)}"
    out.print(f"the ledger's time is {show_time(now)}{until}", soft_wrap=True)
    if accept:
        out.print("the clock is accepted: what was used later counts as used now", soft_wrap=True)


def _options(prefix: str | None, allow_volatile: bool) -> dict[str, Any]:
    """Those options of `open_ledger` that were given; a file has none of them."""
    given = {"prefix": prefix, "allow_volatile": allow_volatile or None}
    return {name: value for name, value in given.items() if value is not None}


def check_expected(lost: str, url: str, home: Path) -> None:
    """Raise unless a witness in `home` expects the ledger at `url` to have the id `lost`.

    Only then can a server's refusal have named it: to accept anything else would help nobody, and would give a ledger
    that is healthy another id.
    """
    ids = _expected_ids(url, home)
    if lost in ids:
        return
    known = f"it is known there as {' or '.join(sorted(ids))}" if ids else "no server has remembered it there"
    raise OptionError(
        f"nothing in '{home}' expects this ledger to be {lost}: {known}. Copy the id from the server's error, and give "
        "the folder of that server (--home); or, if it is out of reach and you are sure, --force"
    )


def _expected_ids(url: str, home: Path) -> set[str]:
    """The ids by which the witnesses in a folder know a ledger."""
    from queen.ledger.open import SERVERS
    from queen.ledger.redis.script import parse_address

    scheme, separator, rest = url.partition("://")
    name = parse_address(url)[0] if scheme in SERVERS else realpath(rest[1:] if separator else url)
    ids: set[str] = set()
    for path in sorted(home.glob("ledger-*.witness")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one expects nothing
            content = json.loads(path.read_bytes())
            if content["ledger"] == name:
                ids.add(str(content["id"]))
    return ids


@app.command(epilog=epilog("`queen migrate redis://10.0.0.5:6379/0 --prefix shop`", "scopes migrated"))
def migrate(
    url: Annotated[
        str,
        typer.Argument(
            envvar="QUEEN_LEDGER", help="A SQLite file, sqlite:///FILE or redis://HOST.", show_default=False
        ),
    ],
    prefix: Annotated[str, typer.Option(help="With Redis: the prefix of all keys of the ledger.")] = "queen",
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
