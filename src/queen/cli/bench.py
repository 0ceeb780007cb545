"""Commands of the benchmark: run a spec, print tables, draw plots, browse and check results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queen.cli.shared import Device, Json, app, epilog, err, out, print_json, print_table

bench = typer.Typer(help="Attack defended models and compare.", no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(bench, name="bench")

Results = Annotated[Path, typer.Argument(help="Folder of results.", show_default=False)]
Columns = Annotated[list[str] | None, typer.Option("--column", help="Only this column; may be repeated.")]
Queries = Annotated[list[str] | None, typer.Option("--query", help="Only this query strategy; may be repeated.")]
Attacks = Annotated[list[str] | None, typer.Option("--attack", help="Only this attack; may be repeated.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be repeated.")]
Metric = Annotated[str, typer.Option(help="accuracy, best_accuracy, agreement or best_agreement of the thief.")]


@bench.command(epilog=epilog("`queen bench run benchmarks/smoke.yaml --out results/smoke`", "done skipped failed"))
def run(
    spec: Annotated[Path, typer.Argument(help="The spec: what to run, YAML.", show_default=False)],
    folder: Annotated[Path, typer.Option("--out", help="Folder of results; finished cells there are skipped.")],
    jobs: Annotated[int | None, typer.Option(help="Processes; by default one for each core.")] = None,
    device: Device = "cpu",
    data: Annotated[Path | None, typer.Option(help="Folder of published image sets (or $QUEEN_DATA).")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for trained victims; by default OUT/.cache.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: its address, 'auto', or 'local' to start one here.")
    ] = None,
    columns: Columns = None,
    queries: Queries = None,
    attacks: Attacks = None,
    seeds: Seeds = None,
    as_json: Json = False,
) -> None:
    """Run every cell of a spec that has no result yet. Stop it at any time: it continues where it stopped."""
    from queen.bench.render.report import html_report
    from queen.bench.run import read_results, run_spec
    from queen.bench.spec import read_spec

    wanted = read_spec(spec)
    for name, (here, published) in wanted.reduced_sizes().items():
        err.print(f"note: {name} is {here}; published: {published}")
    cells = wanted.select(columns or (), queries or (), attacks or (), seeds or ())
    done = run_spec(wanted, folder, cache=cache, device=device, root=data, jobs=jobs, ray_address=ray, selected=cells)
    if done.done + done.skipped:
        results = read_results(folder)
        reduced = wanted.reduced_sizes(results[0]["protectee"].get("classes"))
        page = html_report(results, title=f"QUEEN benchmark: {wanted.name}", sizes=reduced)
        (folder / "report.html").write_text(page)
    if as_json:
        print_json({"done": done.done, "skipped": done.skipped, "failed": done.failed})
    else:
        out.print(f"cells   {done.done} run, {done.skipped} were there, {len(done.failed)} failed")
        out.print(f"report  {folder / 'report.html'}\nnext    queen bench table {folder}")
    for path, why in done.failed.items():
        err.print(f"failed: {path}: {why}", style="red", soft_wrap=True)
    if done.failed:
        raise typer.Exit(1)


@bench.command(
    epilog=epilog(
        "`queen bench plan benchmarks/paper/cifar10.yaml --device cuda --measured results/trial`",
        "name cells finished measured phases files minutes complete device",
    )
)
def plan(
    spec: Annotated[Path, typer.Argument(help="The spec: what would be run, YAML.", show_default=False)],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of results; cells there are done.")] = None,
    device: Device = "cpu",
    measured: Annotated[
        list[Path] | None, typer.Option(help="Folder of results to take times from; may be repeated.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of published image sets (or $QUEEN_DATA).")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of trained victims; by default OUT/.cache.")] = None,
    columns: Columns = None,
    queries: Queries = None,
    attacks: Attacks = None,
    seeds: Seeds = None,
    as_json: Json = False,
) -> None:
    """Say what a run would do, before it starts: cells, what they share, expected minutes, files another machine needs.

    Times are taken from results of the same kind of device, in --measured and in --out.
    """
    from dataclasses import asdict

    from queen.bench.plan import make_plan, read_measured
    from queen.bench.spec import read_spec

    wanted = read_spec(spec)
    known = read_measured([*(measured or ()), *([folder] if folder else ())], wanted, device)
    made = make_plan(
        wanted,
        measured=known,
        out=folder,
        root=data,
        cache=cache or (folder and folder / ".cache"),
        selected=wanted.select(columns or (), queries or (), attacks or (), seeds or ()),
    )
    if as_json:
        print_json({**asdict(made), "minutes": made.minutes, "complete": made.complete, "device": device})
        return
    out.print(f"{made.name}: {made.cells} cells, {made.finished} of them have a result")
    rows = [
        (phase.name, str(phase.times), str(phase.cells), f"{phase.minutes:.1f}" + (" + ?" if phase.unknown else ""))
        for phase in made.phases
    ]
    print_table(
        ("phase", "times", "for cells", "minutes"),
        rows,
        left=1,
        empty="Nothing is left to run: every cell has a result.",
    )
    if made.measured:
        least = "" if made.complete else "at least "
        out.print(f"expected  {least}{made.minutes:.0f} minutes, by {made.measured} results of this victim on {device}")
    else:
        out.print(
            f"expected  unknown: no results of this victim on {device}; run some cells, and name their folder with "
            "--measured"
        )
    for path, size in made.files:
        out.print(f"needs     {path}  {size / 2**20:.1f} MiB", soft_wrap=True)
    out.print(f"together  {sum(size for _, size in made.files) / 2**20:.1f} MiB")


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


@bench.command(
    epilog=epilog(
        "`queen bench study radius benchmarks/studies/radius.yaml --out results/studies`",
        "version study hash config protectee seconds versions hardware",
        sometimes="rows queries images batch preparation benign thieves undefended covers budget life sets divergence "
        "discs",
    )
)
def study(
    name: Annotated[str, typer.Argument(help="Which: threshold, radius, shadow_models, ...", show_default=False)],
    spec: Annotated[
        Path, typer.Argument(help="Its parameters and base, YAML; or a benchmark spec.", show_default=False)
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder for NAME.json and NAME.png.")],
    device: Device = "cpu",
    data: Annotated[Path | None, typer.Option(help="Folder of published image sets (or $QUEEN_DATA).")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for what is trained; by default OUT/.cache.")] = None,
    as_json: Json = False,
) -> None:
    """Run one of the paper's other experiments. Stop it at any time: trained networks are not trained again."""
    from queen.bench.studies import find_study
    from queen.bench.studies.run import run_study

    chosen = find_study(name)
    result = run_study(name, chosen, spec, folder, cache=cache, device=device, root=data)
    if as_json:
        print_json(result)
        return
    typer.echo(chosen.to_markdown(result))
    out.print(f"result   {folder / name}.json\npicture  {folder / name}.png")
