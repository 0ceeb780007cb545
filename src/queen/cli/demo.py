"""`queen demo`: train, protect and attack a small classifier, and show what everybody got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.shared import Json, app, epilog, err, out, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queen.demo import Demo
    from queen.demo.table import DemoTable


@app.command(
    epilog=epilog(
        "`queen demo --json > demo.json`, `queen demo --adaptive`, `queen demo --no-price`",
        "chance seeds victim_accuracy limits images policies sentinel theorem3_paper_own_kind fit seconds",
        sometimes="adaptive price",
    )
)
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where report and bundle go.")] = Path("build/demo"),
    seed: Annotated[int, typer.Option(help="Seed of victim and map.")] = 0,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Also attackers who know the sentinel (under 8 minutes).")
    ] = False,
    no_price: Annotated[
        bool, typer.Option("--no-price", help="Do not measure what a copy costs, at the end (some two minutes).")
    ] = False,
    price_seeds: Annotated[
        int, typer.Option(min=1, help="How many students learn a copy at every point; `queen price` takes 3.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Train, protect and attack a small digit classifier; print what every party got (under 2 minutes).

    Then measure what a copy of it costs, in honest answers (some two minutes; Ctrl-C skips it).
    """
    from queen.demo import run_demo
    from queen.demo.price import price_demo, price_tables
    from queen.demo.run import clear_progress
    from queen.demo.table import demo_tables
    from queen.fit.files import check_folder, write_image

    check_folder(folder)  # before the work, not after it
    run = run_demo(folder, seed=seed, adaptive=adaptive)
    _write(run, folder)
    write_image(run.protectee.test[0][0], folder / "digit.png")
    clear_progress(folder)
    if not as_json:
        _print(demo_tables(run.results))
    if not no_price:
        err.print("\nnow what a copy costs: dozens of networks learn it (Ctrl-C skips this)")
        try:
            run = price_demo(run, folder / "bundle", seeds=price_seeds)
            _write(run, folder)
        except KeyboardInterrupt:
            err.print("skipped: the bundle has no price")
    if as_json:
        print_json(run.results)
        return
    _print(price_tables(run.results))
    out.print(f"\nreport  {folder / 'report.html'}\nbundle  {folder / 'bundle'}")
    out.print(f"next    queen ask {folder / 'bundle'} {folder / 'digit.png'} --explain")


def _write(run: Demo, folder: Path) -> None:
    """The bundle, the figures and the report."""
    from queen.demo.report import html_report

    run.guard.save(folder / "bundle")
    (folder / "demo.json").write_text(json.dumps(run.results, indent=1) + "\n")
    (folder / "report.html").write_text(html_report(run))


def _print(tables: Sequence[DemoTable]) -> None:
    for one in tables:
        if one.title:
            out.print(f"\n{one.title}")
        print_table(one.header, one.rows, left=one.left)
        for note in one.notes:
            out.print(f"- {note}")
