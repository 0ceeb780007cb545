"""`queen demo`: train, protect and attack a small classifier, and show what everybody got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from queen.cli.shared import Json, app, out, print_json, table


@app.command(epilog="Example: `queen demo --json > demo.json`, `queen demo --adaptive`")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where report and bundle go.")] = Path("build/demo"),
    seed: Annotated[int, typer.Option(help="Seed of victim and map.")] = 0,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Also attackers who know the sentinel (under 8 minutes).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train, protect and attack a small digit classifier; print what every party got (under 2 minutes)."""
    from queen.demo import run_demo
    from queen.demo.report import html_report
    from queen.demo.table import ADAPTIVE_HEADER, HEADER, adaptive_notes, adaptive_rows, notes, rows
    from queen.fit.files import check_folder, write_image

    check_folder(folder)  # before the work, not after it
    demonstration = run_demo(seed=seed, adaptive=adaptive)
    folder.mkdir(parents=True, exist_ok=True)
    demonstration.guard.save(folder / "bundle")
    (folder / "demo.json").write_text(json.dumps(demonstration.results, indent=1) + "\n")
    (folder / "report.html").write_text(html_report(demonstration))
    write_image(demonstration.images.test[0][0], folder / "digit.png")
    if as_json:
        print_json(demonstration.results)
        return
    out.print(table(HEADER, rows(demonstration.results), left=2))
    for note in notes(demonstration.results):
        out.print(f"- {note}")
    if adaptive:
        out.print()
        out.print(table(ADAPTIVE_HEADER, adaptive_rows(demonstration.results), left=1))
        for note in adaptive_notes(demonstration.results):
            out.print(f"- {note}")
    out.print(f"\nreport  {folder / 'report.html'}\nbundle  {folder / 'bundle'}")
    out.print(f"next    queen ask {folder / 'bundle'} {folder / 'digit.png'} --explain")
