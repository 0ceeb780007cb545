"""Commands for keys: make one, list them, revoke one."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli.shared import (
    ALREADY_REVOKED,
    Json,
    app,
    epilog,
    err,
    is_typed,
    make_group,
    out,
    print_json,
    print_table,
    read_budget,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queen.serve.access.key import Key
    from queen.serve.access.key_store import KeyStore

keys = make_group("Make, list and revoke the keys of a server.")
app.add_typer(keys, name="keys")

Home = Annotated[Path, typer.Option(envvar="QUEEN_HOME", help="Folder that the keys are kept in.")]
LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger", envvar="QUEEN_LEDGER", help="Ledger of the server; with redis:// the keys are kept there instead."
    ),
]
HOME = Path(".queen")


@keys.command(
    epilog=epilog("`queen keys new alice --group tenant:7`", "key id name groups admin created revoked budget")
)
def new(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Name of the client; several keys may have the same.", show_default=False)
    ],
    group: Annotated[
        list[str] | None, typer.Option(help="Group that shares a budget, as kind:name; may be repeated.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="The key may also operate the server.")] = False,
    extra_answers: Annotated[
        str | None,
        typer.Option(
            "--extra-answers", "--budget", help="Honest answers outside the discs or near a record; 2000/day renews."
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(help="Share of a disc after which a class is spent, for this client; .2/week renews."),
    ] = None,
    home: Home = HOME,
    ledger: LedgerUrl = "",
    as_json: Json = False,
) -> None:
    """Make a key for a client and show it, once."""
    budget = None
    if extra_answers is not None or threshold is not None:
        budget = read_budget(extra_answers, threshold)
    with _open_store(context, home, ledger) as store:
        text, key = store.add(name, tuple(group or ()), admin, budget)
    if as_json:
        print_json({"key": text, **_facts(key)})
        return
    out.print(text, soft_wrap=True)
    err.print("This key is not shown again: only a digest of it is kept.", soft_wrap=True)


@keys.command(
    name="list",
    epilog=epilog("`queen keys list`", "id name groups admin created revoked budget", listed=True),
)
def show(context: typer.Context, home: Home = HOME, ledger: LedgerUrl = "", as_json: Json = False) -> None:
    """List all keys, the oldest first, without their secrets: only digests of these are kept."""
    with _open_store(context, home, ledger) as store:
        listed = sorted(store.keys().values(), key=lambda key: key.created)
    if as_json:
        print_json([_facts(key) for key in listed])
        return
    lines = [
        (
            key.id,
            "active" if key.active else "revoked",
            "admin" if key.admin else "",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(key.created)),
            key.name,
            " ".join(key.groups),
        )
        for key in listed
    ]
    print_table(
        ("id", "state", "admin", "created", "name", "groups"),
        lines,
        left=6,
        empty="There are no keys yet: queen keys new NAME makes one.",
    )


@keys.command(epilog=epilog("`queen keys revoke alice`", "id name groups admin created revoked budget", listed=True))
def revoke(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME_OR_ID", help="Id of a key, or name of a client whose keys are all revoked.")
    ],
    home: Home = HOME,
    ledger: LedgerUrl = "",
    as_json: Json = False,
) -> None:
    """Revoke one key by its id, or all keys of a client by its name; servers notice within a second."""
    with _open_store(context, home, ledger) as store:
        revoked = store.revoke(name)
    if as_json:
        print_json([_facts(key) for key in revoked])
        return
    for key in revoked:
        out.print(f"key {key.id} of {key.name} is revoked", soft_wrap=True)
    if not revoked:
        out.print(ALREADY_REVOKED.format(name=name))


@contextmanager
def _open_store(context: typer.Context, home: Path, ledger: str) -> Iterator[KeyStore]:
    from queen.serve.access.key_store import open_keys

    elsewhere = is_typed(context, "home") and not is_typed(context, "ledger")  # the environment's ledger does not count
    store = open_keys(home, "" if elsewhere else ledger)
    try:
        yield store
    finally:
        store.close()


def _facts(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "groups": list(key.groups),
        "admin": key.admin,
        "created": key.created,
        "revoked": key.revoked,
        "budget": None if key.budget is None else vars(key.budget),
    }
