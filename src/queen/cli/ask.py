"""`queen ask`: one query to a bundle, as a client sends it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from queen.cli.shared import (
    Device,
    Folder,
    Json,
    ModelOption,
    app,
    epilog,
    err,
    missing_file,
    out,
    print_json,
    print_table,
)
from queen.errors import RefusedError


@app.command(
    epilog=epilog(
        "`queen ask build/demo/bundle build/demo/digit.png --explain`",
        "labels probabilities verdicts alarmed refused converted",
        sometimes="honest",
    )
)
def ask(
    folder: Folder,
    query: Annotated[Path, typer.Argument(help="An image, or .npy with one query or a batch.", show_default=False)],
    client: Annotated[str, typer.Option(help="Who asks.")] = "cli",
    ledger: Annotated[
        str | None,
        typer.Option(help="Ledger that remembers between calls: a SQLite file, sqlite:///FILE or redis://HOST."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the honest answer beside the returned one.")] = False,
    group: Annotated[list[str] | None, typer.Option(help="A group the client belongs to, such as tenant:7.")] = None,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Ask a bundle as a client would; exit code 1 if a query gets no answer."""
    from queen.fit.files import read_query
    from queen.guard import load
    from queen.ledger import open_ledger

    store = open_ledger(ledger) if ledger and not missing_file(ledger) else None
    refusal, converted = None, list[str]()
    try:
        guard = load(folder, model, device=device, ledger=store)
        x = read_query(query, guard.bundle, on_convert=converted.append)
        if ledger and store is None:  # made last, so that a mistake leaves none behind
            guard.ledger = store = open_ledger(ledger)
        reply = guard.answer(x, client=client, groups=group or ())
    except RefusedError as error:
        reply, refusal = error.reply, error
    finally:
        if store:
            store.close()
    for conversion in converted:
        err.print(f"note: {conversion}")
    honest = guard.fresh(observe=True).answer(x, client=client).probabilities if explain else None
    if as_json:
        numbers = reply.probabilities.double()
        numbers = numbers if guard.digits is None else numbers.round(decimals=guard.digits)
        answered = (~reply.refused).tolist()
        result: dict[str, Any] = {
            "labels": _where(answered, reply.probabilities.argmax(1).tolist()),
            "probabilities": _where(answered, numbers.tolist()),
            "verdicts": [verdict.value for verdict in reply.verdicts],
            "alarmed": reply.alarmed.tolist(),
            "refused": reply.refused.tolist(),
            "converted": converted,
        }
        print_json(result | ({"honest": honest.tolist()} if honest is not None else {}))
    for row, verdict in enumerate(() if as_json else reply.verdicts):
        if reply.refused[row]:
            out.print(f"query {row}, refused")
            continue
        returned = reply.probabilities[row]
        header = ["class", "returned", *(["honest"] if honest is not None else [])]
        order = returned.argsort(descending=True)[:10].tolist()
        lines = [
            (guard.bundle.name_of(k), f"{returned[k]:.4f}", *([f"{honest[row, k]:.4f}"] if honest is not None else []))
            for k in order
        ]
        accused = ", the client stands accused" if reply.alarmed[row] else ""
        out.print(f"query {row}" + (f", verdict {verdict.value} ({verdict.name.lower()}){accused}" if explain else ""))
        print_table(header, lines, left=1)
    if refusal is not None:
        err.print(f"refused: {refusal}", style="red")
        raise typer.Exit(1)


def _where(answered: list[bool], rows: list[Any]) -> list[Any]:
    """The rows that were answered; None in place of the others."""
    return [row if is_answered else None for row, is_answered in zip(rows, answered, strict=True)]
