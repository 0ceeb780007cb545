"""Commands of the benchmark that compute: run a spec, plan it, make a study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from queen.cli.bench.group import bench
from queen.cli.shared import Device, Json, epilog, err, out, print_json, print_table

Columns = Annotated[list[str] | None, typer.Option("--column", help="Only this column; may be repeated.")]
Queries = Annotated[list[str] | None, typer.Option("--query", help="Only this query strategy; may be repeated.")]
Attacks = Annotated[list[str] | None, typer.Option("--attack", help="Only this attack; may be repeated.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be repeated.")]


@bench.command(epilog=epilog("`queen bench run benchmarks/smoke.yaml --out results/smoke`", "done skipped failed left"))
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
    minutes: Annotated[
        float,
        typer.Option(help="Begin no cell after so many minutes; those that run are finished.", show_default=False),
    ] = math.inf,
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
    done = run_spec(
        wanted,
        folder,
        cache=cache,
        device=device,
        root=data,
        jobs=jobs,
        ray_address=ray,
        selected=cells,
        minutes=minutes,
    )
    has_results = done.done + done.skipped > 0
    if has_results:
        results = read_results(folder)
        reduced = wanted.reduced_sizes(results[0]["protectee"].get("classes"))
        page = html_report(results, title=f"QUEEN benchmark: {wanted.name}", sizes=reduced)
        (folder / "report.html").write_text(page)
    if as_json:
        print_json({"done": done.done, "skipped": done.skipped, "failed": done.failed, "left": done.left})
    else:
        out.print(f"cells   {done.done} run, {done.skipped} were there, {len(done.failed)} failed")
        if done.left:
            out.print(f"left    {done.left}, since time was up: the same command goes on with them")
        if has_results:
            out.print(f"report  {folder / 'report.html'}\nnext    queen bench table {folder}")
    for path, why in done.failed.items():
        err.print(f"failed: {path}: {why}", style="red", soft_wrap=True)
    if done.failed:
        raise typer.Exit(1)


@bench.command(
    epilog=epilog(
        "`queen bench plan benchmarks/paper/cifar10.yaml --device cuda --measured results/trial`",
        "name cells finished measured of_another_victim phases files minutes complete device",
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

    Times are taken from results of the same kind of device, in --measured and in --out: those of this victim, or where
    there is none, those of another with the same networks and pool.
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
        whose = (
            "another victim with the same networks and pool, in proportion to what there is to do"
            if made.of_another_victim
            else "this victim"
        )
        out.print(
            f"expected  {least}{made.minutes:.0f} minutes, by {made.measured} results on {device} of {whose}",
            soft_wrap=True,
        )
    else:
        out.print(
            f"expected  unknown: no results on {device} of this victim, nor of another with the same networks and "
            "pool; run some cells, and name their folder with --measured",
            soft_wrap=True,
        )
    for path, size in made.files:
        out.print(f"needs     {path}  {size / 2**20:.1f} MiB", soft_wrap=True)
    if made.files:
        out.print(f"together  {sum(size for _, size in made.files) / 2**20:.1f} MiB")


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
    jobs: Annotated[int, typer.Option(help="Processes that share the work; run times are taken by one.")] = 1,
    as_json: Json = False,
) -> None:
    """Run one of the paper's other experiments. Stop it at any time: trained networks are not trained again."""
    from queen.bench.studies import find_study
    from queen.bench.studies.run import run_study

    chosen = find_study(name)
    result = run_study(name, chosen, spec, folder, cache=cache, device=device, root=data, jobs=jobs)
    if as_json:
        print_json(result)
        return
    typer.echo(chosen.to_markdown(result))
    out.print(f"result   {folder / name}.json\npicture  {folder / name}.png")
