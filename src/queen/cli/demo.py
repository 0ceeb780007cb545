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
    from queen.demo.run import clear_progress
    from queen.demo.table import demo_tables
    from queen.fit.files import check_folder, write_image

    check_folder(folder)  # before the work, not after it
    run = run_demo(folder, seed=seed, adaptive=adaptive)
    run.guard.save(folder / "bundle")
    (folder / "demo.json").write_text(json.dumps(run.results, indent=1) + "\n")
    (folder / "report.html").write_text(html_report(run))
    write_image(run.protectee.test[0][0], folder / "digit.png")
    clear_progress(folder)
    if as_json:
        print_json(run.results)
        return
    for one in demo_tables(run.results):
        if one.title:
            out.print(f"\n{one.title}")
        out.print(table(one.header, one.rows, left=one.left))
        for note in one.notes:
            out.print(f"- {note}")
    out.print(f"\nreport  {folder / 'report.html'}\nbundle  {folder / 'bundle'}")
    out.print(f"next    queen ask {folder / 'bundle'} {folder / 'digit.png'} --explain")
