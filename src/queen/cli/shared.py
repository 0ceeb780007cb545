"""Shared by all commands: the program, its consoles, common options and ways to print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from queen.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queen.ledger import Ledger

app = typer.Typer(
    name="queen",
    help="Protect a classifier so that nobody can steal it through its answers.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Folder = Annotated[Path, typer.Argument(help="Bundle folder.", show_default=False)]
ModelOption = Annotated[str | None, typer.Option("--model", help="package.module:factory, if the bundle names none.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
ForeignOption = Annotated[
    Path | None,
    typer.Option(
        "--foreign",
        help="Images that a thief might send, to tell how soon it is caught: a folder, .npz with x, or .npy.",
        show_default=False,
    ),
]
WeakOption = Annotated[bool, typer.Option("--weak", help="Accept a sentinel that catches no plain foreign queries.")]
LedgerUrl = Annotated[
    str | None,
    typer.Option(help="Ledger of the guard: a SQLite file, sqlite:///FILE or redis://HOST.", show_default=False),
]
ServerUrl = Annotated[
    str | None, typer.Option(envvar="QUEEN_SERVER", help="A running server, http://HOST:PORT, instead of a ledger.")
]
AdminKey = Annotated[str | None, typer.Option(envvar="QUEEN_ADMIN_KEY", help="Admin key of the server.")]
Client = Annotated[str, typer.Argument(help="Name of the client.", show_default=False)]
Actor = Annotated[str | None, typer.Option(help="Who does this, for the log; you, if not given.")]


def open_existing(address: str, **options: Any) -> Ledger:
    """The ledger at an address, which must exist already if it is a file; `options` are those of `open_ledger`."""
    from queen.ledger import open_ledger
    from queen.serve.lease import lease_path

    beside = lease_path(address)
    if beside is not None and not beside.with_suffix("").is_file():
        raise OptionError(
            f"no ledger '{beside.with_suffix('')}': it is made by a server or a guard, for example "
            "queen ask BUNDLE IMAGE --ledger FILE"
        )
    return open_ledger(address, **options)


def print_json(result: object) -> None:
    """JSON on standard output."""
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


def table(header: Sequence[str], lines: Iterable[Sequence[str]], *, left: int) -> Table:
    """A plain table; the first `left` columns are text."""
    gap = 1 if len(header) < 8 else 0  # a wide table must fit into 80 columns
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), show_edge=False)
    for i, name in enumerate(header):
        table.add_column("\n".join(name.split()), justify="left" if i < left else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table
