"""Shared by all commands: the program, its consoles, common options and ways to print."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from typer.core import TyperGroup

from queen import __version__
from queen.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queen.ledger import Budget, Ledger


def visible(text: str, keep: str = "") -> str:
    """The text with every character spelled out that is not seen as what it is, but for those to `keep`.

    Names come from clients and from other machines: an escape sequence would take over the terminal, a newline forge a
    line, and a character that turns text around or has no width let one client pass for another.

    >>> visible("eve\\x1b[2J")
    'eve<U+001B>[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else f"<U+{ord(c):04X}>" for c in text)


class VisibleConsole(Console):
    """A console that passes on no character that a terminal would obey, except the ends of lines."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, texts with `visible`; tables come from `print_table`, which does the same.

        A terminal gets lines that end between words; a file or a pipe gets every sentence in one line.
        """
        options.setdefault("soft_wrap", not self.is_terminal)
        super().print(*(visible(str(o), "\n") if isinstance(o, str | Path) else o for o in objects), **options)


ALREADY_REVOKED = "Nothing was revoked: '{name}' has no active key, all of them are revoked already."
WIDEST = 10_000  # columns that a table may take

SECRET_OPTIONS = {
    "--webhook-secret": "--webhook-secret-file, or QUEEN_WEBHOOK_SECRET in the environment",
    "--upstream-header": "--upstream-header-file",
    "--key": "QUEEN_ADMIN_KEY in the environment",
}
PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")  # in an address


def secret_warnings(arguments: Sequence[str]) -> list[str]:
    """What to say, a sentence each, about secrets on a command line, which every user of a machine may list."""
    instead = [way for option, way in SECRET_OPTIONS.items() if any(a.partition("=")[0] == option for a in arguments)]
    if any(PASSWORD.search(argument) for argument in arguments):
        instead.append("QUEEN_LEDGER in the environment")
    return [f"a secret on the command line can be read in the list of processes: use {way}" for way in instead]


def is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether a parameter of the running command was typed, and does not come from the environment or a default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def choose_store(context: typer.Context, ledger: str | None, server: str | None) -> tuple[str | None, str | None]:
    """Ledger and server as given; but if both are, a typed one wins over one from the environment."""
    typed = is_typed(context, "ledger"), is_typed(context, "server")
    if ledger is None or server is None or typed[0] == typed[1]:
        return ledger, server
    return (ledger, None) if typed[0] else (None, server)


class CommandGroup(TyperGroup):
    """A group that lists its commands with whole sentences, however narrow the terminal."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list below the options."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(WIDEST)) for name, one in self.commands.items()])


def make_group(summary: str, **options: Any) -> typer.Typer:
    """A group of commands. Help is plain text: in a frame there would be no room for the longer options."""
    return typer.Typer(help=summary, cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, **options)


app = make_group(
    "Protect a classifier so that nobody can steal it through its answers.",
    name="queen",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = VisibleConsole(highlight=False, markup=False)
err = VisibleConsole(stderr=True, highlight=False, markup=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"queen {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Protect a classifier so that nobody can steal it through its answers."""


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Folder = Annotated[Path, typer.Argument(help="Bundle folder.", show_default=False)]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="package.module:factory of the model; needed if the bundle does not name it."),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
ForeignOption = Annotated[
    Path | None,
    typer.Option(
        "--foreign",
        help="Images that a thief might send, to measure how soon it is caught: a folder, .npz with x, or .npy.",
        show_default=False,
    ),
]
WeakOption = Annotated[
    bool, typer.Option("--weak", help="Accept a sentinel that would not catch plain foreign queries.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        envvar="QUEEN_LEDGER",
        help="Ledger of the guard: a SQLite file, sqlite:///FILE or redis://HOST.",
        show_default=False,
    ),
]
LedgerHere = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="QUEEN_LEDGER",
        help="Ledger of the guard: a SQLite file, sqlite:///FILE or redis://HOST; by default the one that a server "
        "keeps here, .queen/ledger.sqlite.",
        show_default=False,
    ),
]
AllowVolatile = Annotated[
    bool, typer.Option("--allow-volatile", help="Accept a Redis that may lose what it has acknowledged.")
]
ServerUrl = Annotated[
    str | None, typer.Option(envvar="QUEEN_SERVER", help="A running server, http://HOST:PORT, instead of a ledger.")
]
AdminKey = Annotated[str | None, typer.Option(envvar="QUEEN_ADMIN_KEY", help="Admin key of the server.")]
Client = Annotated[str, typer.Argument(help="Name of the client.", show_default=False)]
Actor = Annotated[str | None, typer.Option(help="Who does this, for the log; by default your user name.")]


def missing_file(address: str) -> Path | None:
    """The file of the ledger at an address, if it is to be a file and is not there."""
    from queen.serve.lease import lease_path

    beside = lease_path(address)
    return None if beside is None or beside.with_suffix("").is_file() else beside.with_suffix("")


def open_existing(address: str, **options: Any) -> Ledger:
    """The ledger at an address, which must exist already if it is a file; `options` are those of `open_ledger`."""
    from queen.ledger import open_ledger

    if missing := missing_file(address):
        raise OptionError(
            f"no ledger '{missing}': it is made by a server or a guard, for example "
            "queen ask BUNDLE IMAGE --ledger FILE"
        )
    return open_ledger(address, **options)


def read_budget(extra_answers: str | None, threshold: str | None) -> Budget:
    """A client's own budget from what was typed: numbers for life, or 2000/day and .2/week; None leaves the guard's."""
    from queen.allowance import read_amount
    from queen.ledger import Budget

    given = {"extra_answers": extra_answers, "threshold": threshold}
    amounts: dict[str, Any] = {name: read_amount(text) for name, text in given.items() if text is not None}
    return Budget(**amounts)


def this_actor(name: str | None) -> str:
    """Who does something, for the log: the one named, or who runs the command."""
    return getpass.getuser() if name is None else name


def print_json(result: object) -> None:
    """JSON on standard output, in visible ASCII, and at once: somebody may read from a pipe, or the disk be full."""
    sys.stdout.write(json.dumps(result, indent=1).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def epilog(example: str, keys: str, *, listed: bool = False, sometimes: str = "") -> str:
    """What stands below the help of a command: an example, and the keys of the JSON that it prints.

    `keys` are those of the object, or if `listed` of every object in a list; `sometimes` are those that only some
    options or bundles bring. Names are separated by spaces. Tests compare them with what commands print.
    """
    every, some = (", ".join(f"`{key}`" for key in names.split()) for names in (keys, sometimes))
    shape = "a list of objects with" if listed else "an object with"
    return f"Example: {example}\n\nWith --json: {shape} {every}{f'; where it applies also {some}' if some else ''}."


def table(header: Sequence[str], lines: Iterable[Sequence[str]], *, left: int) -> Table:
    """A plain table; the first `left` columns are text."""
    gap = 1 if len(header) < 8 else 0  # a wide table must fit into 80 columns
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), show_edge=False)
    for i, name in enumerate(header):
        table.add_column("\n".join(visible(name).split()), justify="left" if i < left else "right", no_wrap=True)
    for line in lines:
        table.add_row(*map(visible, line))
    return table


def print_table(
    header: Sequence[str], lines: Iterable[Sequence[str]], *, left: int, empty: str = "There is nothing to list."
) -> None:
    """Print a table, of which nothing is ever cut off; without lines the sentence `empty` instead.

    If the terminal is too narrow for the table, every line becomes a list, one cell below the other. A file or a pipe
    gets the table as wide as it is.
    """
    rows = list(lines)
    if not rows:
        out.print(empty)
        return
    made = table(header, rows, left=left)
    width = Measurement.get(out, out.options.update(width=WIDEST), made).maximum
    if width <= out.width or not out.is_terminal:
        VisibleConsole(highlight=False, markup=False, width=max(out.width, width)).print(made, soft_wrap=False)
        return
    for number, row in enumerate(rows):
        if number:
            out.print()
        facts = Table.grid(padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True)
        facts.add_column(overflow="fold")
        for name, cell in zip(header, row, strict=True):
            if cell:
                facts.add_row(visible(name), visible(cell))
        out.print(facts)


def share_of_disc(coverage: float) -> str:
    """How much of a class's disc has been seen, in percent; one large record may cover more than there is."""
    return f"{coverage:.1%}" if coverage <= 1 else "over 100%"


def jobs_on(device: str) -> int:
    """How many processes share long work unless somebody says: one a core, but one GPU does one thing at a time."""
    return min(4, os.cpu_count() or 1) if device == "cpu" else 1
