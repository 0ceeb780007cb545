"""The command line: thin commands over the library. Results go to standard output, the rest to standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from queen.types import OptionError, QueenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queen.bundle import Bundle

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


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, never a stack trace."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # so that package.module:factory finds modules beside the user
    try:
        app()
    except ModuleNotFoundError as error:
        err.print(f"error: this command needs '{error.name}': pip install 'queen[demo]'", style="red", soft_wrap=True)
        sys.exit(2)
    except QueenError as error:
        err.print(f"error: {' '.join(str(error).split())}", style="red", soft_wrap=True)
        sys.exit(2)


@app.command(epilog="Example: `queen demo --json > demo.json`")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where report and bundle go.")] = Path("build/demo"),
    seed: Annotated[int, typer.Option(help="Seed of victim and map.")] = 0,
    as_json: Json = False,
) -> None:
    """Train, protect and attack a small digit classifier; print what every party got (under 2 minutes)."""
    from queen.demo import run_demo
    from queen.demo.report import html_report
    from queen.demo.table import HEADER, notes, rows
    from queen.files import check_folder, write_image

    check_folder(folder)  # before the work, not after it
    found = run_demo(seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    found.guard.save(folder / "bundle")
    (folder / "demo.json").write_text(json.dumps(found.results, indent=1) + "\n")
    (folder / "report.html").write_text(html_report(found))
    write_image(found.images.test[0][0], folder / "digit.png")
    if as_json:
        _print_json(found.results)
        return
    out.print(_table(HEADER, rows(found.results), left=2))
    for note in notes(found.results):
        out.print(f"- {note}")
    out.print(f"\nreport  {folder / 'report.html'}\nbundle  {folder / 'bundle'}")
    out.print(f"next    queen ask {folder / 'bundle'} {folder / 'digit.png'} --explain")


@app.command(
    epilog="Example: `queen protect vgg16_bn --arg classes=10 --weights vgg.safetensors --data train.npz "
    "--calibration held_out.npz --out bundle`"
)
def protect(
    factory: Annotated[str, typer.Argument(help="package.module:factory, or a network of queen.zoo.")],
    weights: Annotated[Path, typer.Option(help="Trained weights, .safetensors.")],
    data: Annotated[Path, typer.Option(help="Training data, .npz with x and y.")],
    folder: Annotated[Path, typer.Option("--out", help="Bundle folder to write.")],
    calibration: Annotated[Path | None, typer.Option(help="Held-out benign data, .npz with x and y.")] = None,
    arg: Annotated[list[str] | None, typer.Option(help="Factory argument, name=value (value in JSON).")] = None,
    head: Annotated[str | None, typer.Option(help="Last layer, if not the last Linear.")] = None,
    policy: Annotated[str, typer.Option(help="paper, strict or artifact.")] = "paper",
    observe: Annotated[bool, typer.Option("--observe", help="Decide and count, but answer honestly.")] = False,
    radius: Annotated[float, typer.Option(help="Radius of a query, relative to its class's spread.")] = 0.02,
    threshold: Annotated[float, typer.Option(help="Share of a disc after which a class is spent.")] = 0.2,
    shadows: Annotated[str, typer.Option(help="head or network.")] = "head",
    seed: Annotated[int, typer.Option(help="Seed of map and shadows.")] = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Fit a defense around a trained model and write it as a bundle."""
    import queen
    from queen.core.inputs import find_device
    from queen.files import attempt, check_folder, factory_args, read_data, read_weights
    from queen.fit import ShadowRecipe
    from queen.types import Limits
    from queen.zoo import NETWORKS, Recipe

    where = find_device(device)
    args = factory_args(arg or [])
    recipe = Recipe("queen.zoo:build", {"name": factory, **args}) if factory in NETWORKS else Recipe(factory, args)
    model = attempt(recipe.build, f"cannot build '{factory}'", TypeError, ValueError, RuntimeError)
    state = read_weights(weights)
    attempt(lambda: model.load_state_dict(state), f"'{weights}' does not fit '{factory}'", RuntimeError)
    check_folder(folder)  # before the work, not after it
    guard = queen.protect(
        model.to(where),
        read_data(data),
        calibration=read_data(calibration) if calibration else None,
        head=head,
        policy=policy,
        observe=observe,
        limits=Limits(radius=radius, threshold=threshold),
        shadows=ShadowRecipe(kind=shadows),  # type: ignore[arg-type]  # protect() says which kinds there are
        factory=recipe.factory,
        factory_args=recipe.args,
        seed=seed,
        progress=None if as_json else True,
    )
    guard.save(folder)
    if as_json:
        _print_json({"bundle": str(folder), "identity": guard.bundle.identity, "report": guard.report})
    else:
        out.print(f"bundle {folder} written, identity {guard.bundle.identity[:16]}")


@app.command(epilog="Example: `queen ask build/demo/bundle build/demo/digit.png --explain`")
def ask(
    folder: Folder,
    query: Annotated[Path, typer.Argument(help="An image, or .npy with one query or a batch.", show_default=False)],
    client: Annotated[str, typer.Option(help="Who asks.")] = "cli",
    ledger: Annotated[Path | None, typer.Option(help="SQLite ledger that remembers between calls.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the honest answer beside the returned one.")] = False,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Ask a bundle as a client would."""
    from queen.files import read_query
    from queen.guard import load
    from queen.ledger import SqliteLedger

    guard = load(folder, model, device=device)
    x = read_query(query, guard.bundle)
    store = SqliteLedger(ledger) if ledger else None
    guard.ledger = store or guard.ledger
    reply = guard.answer(x, client=client)
    honest = guard.fresh(observe=True).answer(x, client=client).probabilities if explain else None
    if store:
        store.close()
    if as_json:
        result: dict[str, Any] = {
            "labels": reply.probabilities.argmax(1).tolist(),
            "probabilities": reply.probabilities.tolist(),
            "verdicts": [verdict.value for verdict in reply.verdicts],
        }
        _print_json(result | ({"honest": honest.tolist()} if honest is not None else {}))
        return
    for row, verdict in enumerate(reply.verdicts):
        returned = reply.probabilities[row]
        header = ["class", "returned", *(["honest"] if honest is not None else [])]
        order = returned.argsort(descending=True)[:10].tolist()
        lines = [
            (guard.bundle.name_of(k), f"{returned[k]:.4f}", *([f"{honest[row, k]:.4f}"] if honest is not None else []))
            for k in order
        ]
        out.print(f"query {row}" + (f", verdict {verdict.value} ({verdict.name.lower()})" if explain else ""))
        out.print(_table(header, lines, left=1))


@app.command(epilog="Example: `queen inspect build/demo/bundle --map map.png`")
def inspect(
    folder: Folder,
    picture: Annotated[Path | None, typer.Option("--map", help="Write the 2-D map as PNG.")] = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """Show a bundle: policy, classes, spreads, budgets, the map's health."""
    from queen.folder import load_bundle

    bundle = load_bundle(folder, model)
    if picture:
        _draw(bundle, picture)
    report = bundle.report
    facts = {
        "identity": bundle.identity,
        "policy": bundle.policy + (" (observe only)" if bundle.observe else ""),
        "head": bundle.split.head_name,
        "factory": bundle.recipe.factory if bundle.recipe else None,
        "threshold": bundle.limits.threshold,
    }
    classes = [
        {
            "class": bundle.name_of(k),
            "spread": spread,
            "radius": bundle.limits.radius[k] if isinstance(bundle.limits.radius, tuple) else bundle.limits.radius,
            "answers": report["answers_per_class"][k],
            "records_bound": report["records_per_class"][k],
        }
        for k, spread in enumerate(bundle.geometry.spreads.tolist())
    ]
    if as_json:
        _print_json(facts | {"classes": classes, "report": report})
        return
    from queen.report import Report

    for name, value in facts.items():
        out.print(f"{name:<10}{value}")
    for line in Report(**report).lines():
        out.print(line)
    header = ("class", "spread", "radius", "answers (about)", "records (bound)")
    lines = [[c["class"], f"{c['spread']:.4g}", f"{c['radius']:.4g}", *map(str, list(c.values())[3:])] for c in classes]
    out.print(_table(header, lines, left=1))
    if picture:
        out.print(f"map       {picture}")


@app.command(epilog="Example: `queen certify --epsilon .1 --delta .05 --threshold .2`")
def certify(
    folder: Annotated[Path | None, typer.Argument(help="A bundle, to add what its data says.")] = None,
    epsilon: Annotated[float, typer.Option(help="Allowed error of a thief in the paper's Theorem 2.")] = 0.1,
    delta: Annotated[float, typer.Option(help="Its probability.")] = 0.05,
    threshold: Annotated[float | None, typer.Option(help="t; the bundle's, or .2.")] = None,
    radius: Annotated[
        float | None, typer.Option(help="Relative radius; the bundle's smallest, or the sound one.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help=".npy of queries: estimate Theorem 3 on them (needs a bundle).")
    ] = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """What limits promise: Theorem 2 as printed and made sound, the record bound, Theorem 3's estimate."""
    from queen.bench.recovery import recovery_by_verdict
    from queen.core import certify as maths
    from queen.files import read_query
    from queen.guard import load

    guard = load(folder, model) if folder else None
    if guard:
        limits = guard.bundle.limits
        threshold = limits.threshold if threshold is None else threshold
        smallest = min(limits.radius) if isinstance(limits.radius, tuple) else limits.radius
        radius = smallest if radius is None else radius
    elif queries:
        raise OptionError("--queries needs a bundle: queen certify BUNDLE --queries file.npy")
    certificate = maths.certify(epsilon, delta, 0.2 if threshold is None else threshold, radius=radius)
    result: dict[str, Any] = vars(certificate) | {"statements": list(certificate.statements)}
    if guard:
        result["benign_queries_before_first_spent_class"] = guard.report["calibration_first_spent"]
        result["benign_queries_replayed"] = guard.report["calibration_images"]
    if guard and queries:
        found = recovery_by_verdict(guard, read_query(queries, guard.bundle))
        result["theorem3"] = {letter: vars(one) for letter, one in found.items()}
    if as_json:
        _print_json(result)
        return
    names = ("eta_hat", "rho_paper", "rho_sound", "radius", "records_per_class")
    out.print(_table(("quantity", "value"), [(name, f"{result[name]:.6g}") for name in names], left=1))
    for statement in certificate.statements:
        out.print(f"- {statement}")
    if guard and guard.bundle.calibration:
        spent = guard.report["calibration_first_spent"]
        when = f"after {spent} of them" if spent is not None else "never"
        out.print(f"- Replaying {guard.report['calibration_images']} held-out images: a first class is spent {when}.")
    for letter, one in result.get("theorem3", {}).items():
        out.print(
            f"- Verdict {letter}, {one['rows']} queries: no recovery below {one['bound']:.5f} (Theorem 3, estimated), "
            f"best recovery fitted {one['fitted']:.5f}, in squared error per query."
        )


@app.command(epilog="Example: `queen speed --json > results/speed/my-machine.json`")
def speed(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the time, rough.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what the guard costs, as ratios and rates inside one run."""
    from queen.bench.speed import measure_speed

    found = measure_speed(quick=quick)
    if as_json:
        _print_json(found)
        return
    lines = [(f"guard / undefended, {name}", f"{value:.3f}") for name, value in found["guard_ratio"].items()]
    lines += [(f"judge, {name}", f"{value:,.6g}") for name, value in found["judge_per_second"].items()]
    lines += [("sqlite queries/s, batch 32", f"{found['sqlite_per_second']:,.0f}")]
    lines += [(f"{name}, rows/s", f"{value:,.0f}") for name, value in found["rows_per_second"].items()]
    lines += [("gradient reverse, times faster than SLSQP", f"{found['slsqp_ratio']:,.0f}")]
    out.print(_table(("what", "value"), lines, left=1))


def _print_json(result: object) -> None:
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


def _table(header: Sequence[str], lines: Iterable[Sequence[str]], *, left: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for i, name in enumerate(header):
        table.add_column("\n".join(name.split()), justify="left" if i < left else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _draw(bundle: Bundle, path: Path) -> None:
    from queen.files import attempt
    from queen.picture import draw_map, plane_points

    benign = None
    if bundle.calibration:
        labels = bundle.calibration.labels.numpy()
        benign = (plane_points(bundle, bundle.calibration.points.numpy(), labels), labels)
    png = draw_map(bundle, "discs and held-out images" if benign else "discs", benign=benign)
    attempt(lambda: path.write_bytes(png), f"cannot write '{path}'", OSError)
