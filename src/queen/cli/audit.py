"""`queen audit`: who has been extracting the model, as far as recorded queries tell."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.shared import (
    Device,
    Folder,
    Json,
    ModelOption,
    app,
    epilog,
    err,
    out,
    print_json,
    print_table,
    share_of_disc,
)
from queen.errors import OptionError

if TYPE_CHECKING:
    from queen.serve.querylog.audit import AuditedAccount, AuditReport
    from queen.serve.querylog.format import Damage

HEADER = ("who", "queries", "wealth", "accused at query", "accused on", "coverage", "extra answers", "honest answers")


@app.command(
    epilog=epilog(
        "`queen audit build/demo/bundle queries/ --since 2026-01-31`",
        "found requests queries skipped reasons unpooled first last statement damaged",
    )
)
def audit(
    folder: Folder,
    queries: Annotated[Path, typer.Argument(help="Folder that the server recorded queries in.", show_default=False)],
    since: Annotated[str | None, typer.Option(help="Only queries from this time on (ISO 8601).")] = None,
    until: Annotated[str | None, typer.Option(help="Only queries before this time (ISO 8601).")] = None,
    top: Annotated[int, typer.Option(help="How many clients to show; accused clients are always shown.")] = 50,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1 if anybody is accused.")] = False,
    batch: Annotated[int, typer.Option(help="Queries that the model takes at once.")] = 256,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Replay recorded queries under the policy sentinel, to find past extractors."""
    from queen.guard import load
    from queen.progress import Progress
    from queen.serve.querylog import audit as replay
    from queen.serve.querylog.folder import read_log

    damaged: list[Damage] = []
    requests = read_log(queries, _seconds("--since", since), _seconds("--until", until), on_damage=damaged.append)
    guard = load(folder, model, device=device)
    with Progress() as progress:
        report = replay.audit(guard, requests, batch=batch, progress=progress)
    if as_json:
        fields = asdict(report)
        print_json({"found": fields.pop("accounts"), **fields, "damaged": len(damaged)})
    else:
        _print(report, top)
        for note in _notes(report, damaged):
            err.print(f"note: {note}")
    if fail and report.accused:
        raise typer.Exit(1)


def _print(report: AuditReport, top: int) -> None:
    shown = report.accounts[: max(top, len(report.accused))]
    print_table(HEADER, [_line(account) for account in shown], left=1, empty="No query was recorded in this time.")
    if len(shown) < len(report.accounts):
        out.print(f"{len(report.accounts) - len(shown)} more are not shown; nobody of them is accused")
    if report.first is not None and report.last is not None:
        out.print(f"recorded from {_time(report.first)} to {_time(report.last)}")
    out.print(f"{report.queries} queries in {report.requests} requests: {len(report.accused)} accused")
    out.print(report.statement)


def _line(account: AuditedAccount) -> tuple[str, ...]:
    return (
        f"group {account.name}" if account.group else account.name,
        str(account.queries),
        f"{account.wealth:.3g}",
        "" if account.accused_at_query is None else str(account.accused_at_query),
        "" if account.accused_at is None else _time(account.accused_at, "%m-%d %H:%M"),  # no room for a year
        share_of_disc(account.coverage),
        str(account.extra_answers),
        str(account.honest_answers),
    )


def _notes(report: AuditReport, damaged: list[Damage]) -> list[str]:
    notes = []
    if report.skipped:
        notes.append(f"{report.skipped} queries do not fit this bundle and were skipped: {'; '.join(report.reasons)}")
    if report.unpooled:
        notes.append(f"the bundle has no limits for groups of these kinds: {', '.join(report.unpooled)}")
    if damaged:
        notes.append(f"{len(damaged)} damaged places were skipped, the first in {damaged[0].path}: {damaged[0].reason}")
    return notes


def _seconds(option: str, text: str | None) -> float | None:
    """Unix seconds of a time in ISO 8601; without an offset it is local time."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise OptionError(
            f"{option} must be a time such as 2026-01-31T18:00 or 2026-01-31T18:00Z, got '{text}'"
        ) from error


def _time(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(seconds).strftime(form)
