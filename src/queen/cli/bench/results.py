"""Commands of the benchmark that show results: tables, plots, a page to browse, a check for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queen.cli.bench.group import bench
from queen.cli.shared import Json, epilog, out, print_json, print_table

Results = Annotated[Path, typer.Argument(help="Folder of results.", show_default=False)]
Metric = Annotated[str, typer.Option(help="accuracy, best_accuracy, agreement or best_agreement of the thief.")]


@bench.command(
    name="table",
    epilog=epilog(
        "`queen bench table results/smoke --format latex`", "protectee metric columns rows notes", listed=True
    ),
)
def show_table(
    folder: Results,
    metric: Metric = "accuracy",
    form: Annotated[str, typer.Option("--format", help="rich, markdown, latex or json.")] = "rich",
    as_json: Json = False,
) -> None:
    """Print results in the paper's layout: one row per attack, one column per defense."""
    from queen.bench.render.table import tables, to_json, to_latex, to_markdown
    from queen.bench.run import read_results
    from queen.errors import OptionError

    shown = tables(read_results(folder), metric)
    form = "json" if as_json else form
    if form == "json":
        print_json([to_json(one) for one in shown])
    elif form == "rich":
        for one in shown:
            out.print(f"{one.protectee}")
            header = ("query", "attack", *(name.replace("_", " ").replace("-", " ") for name in one.columns))
            print_table(header, [(row.query, row.name, *row.texts()) for row in one.rows], left=2)
            for note in one.notes:
                out.print(f"- {note}")
    elif form in ("markdown", "latex"):
        typer.echo("\n".join((to_markdown if form == "markdown" else to_latex)(one) for one in shown), nl=False)
    else:
        raise OptionError(f"no format '{form}'; known: rich, markdown, latex, json")


@bench.command(epilog=epilog("`queen bench plot results/smoke --out plots`", "pictures"))
def plot(
    folder: Results,
    to: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("build/plots"),
    metric: Metric = "accuracy",
    as_json: Json = False,
) -> None:
    """Draw every thief as a grid, and the best attacker against what benign clients get."""
    from queen.atomic import make_folder
    from queen.bench.render.plots import draw_matrix, draw_tradeoff
    from queen.bench.render.table import tables
    from queen.bench.run import read_results

    results = read_results(folder)
    chance = {r["protectee"]["name"]: r["protectee"]["chance"] for r in results}
    make_folder(to)
    drawn = []
    for one in tables(results, metric):
        for name, png in (("matrix", draw_matrix(one)), ("tradeoff", draw_tradeoff(one, chance[one.protectee]))):
            path = to / f"{one.protectee}-{name}.png"
            path.write_bytes(png)
            drawn.append(str(path))
    if as_json:
        print_json({"pictures": drawn})
    else:
        out.print("\n".join(drawn), soft_wrap=True)


@bench.command(epilog=epilog("`queen bench view results/smoke --spec benchmarks/smoke.yaml`", "page cells bytes"))
def view(
    folder: Results,
    page: Annotated[
        Path | None, typer.Option("--out", help="The page; by default index.html beside the results.")
    ] = None,
    specs: Annotated[
        list[Path] | None, typer.Option("--spec", help="What was run, YAML; by default what the run left there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a page to browse all cells: the curve, flags and config of each, and the command that computes it again."""
    from os.path import commonpath, relpath

    from queen.atomic import make_folder, write_atomically
    from queen.bench.render.view import html_view
    from queen.bench.run import read_results, read_specs, result_paths
    from queen.bench.spec import read_spec
    from queen.errors import OptionError

    page = page or folder / "index.html"
    if page.is_dir():
        raise OptionError(f"--out must be a file, got the folder '{page}': try --out {page / 'index.html'}")
    paths = [path.relative_to(folder).as_posix() for path in result_paths(folder)]
    known = {path: read_spec(path) for path in specs} if specs else read_specs(folder)
    way = Path(relpath(folder, page.parent)).as_posix()
    text = html_view(
        dict(zip(paths, read_results(folder), strict=True)),
        title=f"QUEEN benchmark: {folder.resolve().name}",
        specs={Path(relpath(path)).as_posix(): spec for path, spec in known.items()},
        folder="" if way == "." else f"{way}/",
    )
    make_folder(page.parent)
    write_atomically(page, text)
    if as_json:
        print_json({"page": str(page), "cells": len(paths), "bytes": len(text.encode())})
    else:
        served = commonpath([folder.resolve(), page.parent.resolve()])
        out.print(f"cells  {len(paths)}\npage   {page}", soft_wrap=True)
        out.print(f"serve  python -m http.server --bind 127.0.0.1 --directory {relpath(served)}", soft_wrap=True)
        out.print(f"open   http://127.0.0.1:8000/{Path(relpath(page.resolve(), served)).as_posix()}", soft_wrap=True)


@bench.command(epilog=epilog("`queen bench check results/mine --max-thief 0.5 --min-benign 0.9`", "passed problems"))
def check(
    folder: Results,
    max_thief: Annotated[float, typer.Option(help="The best accuracy that a stolen copy may have, 0 to 1.")],
    min_benign: Annotated[float | None, typer.Option(help="The least accuracy that benign clients must get.")] = None,
    defense: Annotated[list[str] | None, typer.Option(help="Columns to check; by default all but 'none'.")] = None,
    allow_flags: Annotated[bool, typer.Option("--allow-flags", help="Do not fail on flagged runs.")] = False,
    as_json: Json = False,
) -> None:
    """Fail (exit code 1) if a thief is too good, benign clients are hurt, or a run proves nothing. For your CI."""
    from queen.bench.check import problems
    from queen.bench.run import missing_results, read_results

    listed = problems(
        read_results(folder), max_thief=max_thief, min_benign=min_benign, columns=defense, allow_flags=allow_flags
    )
    listed += [f"{path}: there is no result; run it again" for path in missing_results(folder)]
    if as_json:
        print_json({"passed": not listed, "problems": listed})
    else:
        for problem in listed:
            out.print(problem, soft_wrap=True)
        out.print("failed" if listed else "passed")
    if listed:
        raise typer.Exit(1)
