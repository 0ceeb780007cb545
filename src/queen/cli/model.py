"""Commands around a model: try it, protect it, ask it, look into it, certify and measure it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli.shared import (
    Device,
    Folder,
    Json,
    ModelOption,
    app,
    out,
    print_json,
    table,
)
from queen.errors import OptionError, RefusedError

SOLVERS = (
    ("modelguard_w_k10", "ModelGuard-W at K = 10", "HiGHS row by row"),
    ("modelguard_w_k100", "ModelGuard-W at K = 100", "HiGHS row by row"),
    ("mad_k10", "MAD at K = 10", "with autograd row by row"),
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queen.bundle.bundle import Bundle


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
    from queen.demo.table import demo_tables
    from queen.fit.files import check_folder, write_image

    check_folder(folder)  # before the work, not after it
    run = run_demo(folder, seed=seed, adaptive=adaptive)
    run.guard.save(folder / "bundle")
    (folder / "demo.json").write_text(json.dumps(run.results, indent=1) + "\n")
    (folder / "report.html").write_text(html_report(run))
    write_image(run.protectee.test[0][0], folder / "digit.png")
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


@app.command(
    epilog="Example: `queen protect vgg16_bn --arg classes=10 --weights vgg.safetensors --data train.npz "
    "--calibration held_out.npz --out bundle`"
)
def protect(
    factory: Annotated[str, typer.Argument(help="package.module:factory, or a network of queen.zoo.")],
    weights: Annotated[Path, typer.Option(help="Trained weights, .safetensors.")],
    data: Annotated[Path, typer.Option(help="Training data, .npz with x and y.")],
    folder: Annotated[Path, typer.Option("--out", help="Bundle folder to write.")],
    calibration: Annotated[
        Path | None, typer.Option(help="Held-out benign data, .npz with x and y; 'train': none, so no certificate.")
    ] = None,
    arg: Annotated[list[str] | None, typer.Option(help="Factory argument, name=value (value in JSON).")] = None,
    head: Annotated[str | None, typer.Option(help="Last layer, if not the last Linear.")] = None,
    policy: Annotated[str, typer.Option(help="paper, strict, sentinel or artifact.")] = "paper",
    alpha: Annotated[float, typer.Option(help="Sentinel: chance to ever accuse a benign client.")] = 1e-3,
    on_alarm: Annotated[
        str, typer.Option(help="Sentinel: decoy, reverse, label-only, refuse or observe accused clients.")
    ] = "decoy",
    on_spent: Annotated[
        str, typer.Option(help="Sentinel: refuse, decoy or reverse for clients without budget.")
    ] = "refuse",
    observe: Annotated[bool, typer.Option("--observe", help="Decide and count, but answer honestly.")] = False,
    radius: Annotated[float, typer.Option(help="Radius of a query, relative to its class's spread.")] = 0.02,
    threshold: Annotated[float, typer.Option(help="Share of a disc after which a class is spent.")] = 0.2,
    extra_answers: Annotated[
        int, typer.Option(help="Sentinel: honest answers outside the discs or near a record.")
    ] = 2000,
    shadows: Annotated[str, typer.Option(help="head or network.")] = "head",
    seed: Annotated[int, typer.Option(help="Seed of map and shadows.")] = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Fit a defense around a trained model and write it as a bundle."""
    import queen
    from queen.core.inputs import find_device
    from queen.fit.files import attempt, check_folder, factory_args, read_data, read_weights
    from queen.fit.protect import ShadowRecipe
    from queen.options import Limits, Sentinel
    from queen.recipe import Recipe
    from queen.zoo import NETWORKS

    where = find_device(device)
    args = factory_args(arg or [])
    recipe = Recipe("queen.zoo:build", {"name": factory, **args}) if factory in NETWORKS else Recipe(factory, args)
    model = attempt(recipe.build, f"cannot build '{factory}'", TypeError, ValueError, RuntimeError)
    state = read_weights(weights)
    attempt(lambda: model.load_state_dict(state), f"'{weights}' does not fit '{factory}'", RuntimeError)
    check_folder(folder)  # before the work, not after it
    held_out: Any = "train" if calibration == Path("train") else read_data(calibration) if calibration else None
    guard = queen.protect(
        model.to(where),
        read_data(data),
        calibration=held_out,
        head=head,
        policy=policy,
        sentinel=Sentinel(alpha=alpha, on_alarm=on_alarm, on_spent=on_spent),
        observe=observe,
        limits=Limits(radius=radius, threshold=threshold, extra_answers=extra_answers),
        shadows=ShadowRecipe(kind=shadows),  # type: ignore[arg-type]  # protect() says which kinds there are
        factory=recipe.factory,
        factory_args=recipe.args,
        seed=seed,
        progress=None if as_json else True,
    )
    guard.save(folder)
    if as_json:
        print_json({"bundle": str(folder), "identity": guard.bundle.identity, "report": guard.report})
    else:
        out.print(f"bundle {folder} written, identity {guard.bundle.identity[:16]}")


@app.command(epilog="Example: `queen ask build/demo/bundle build/demo/digit.png --explain`")
def ask(
    folder: Folder,
    query: Annotated[Path, typer.Argument(help="An image, or .npy with one query or a batch.", show_default=False)],
    client: Annotated[str, typer.Option(help="Who asks.")] = "cli",
    ledger: Annotated[Path | None, typer.Option(help="SQLite ledger that remembers between calls.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the honest answer beside the returned one.")] = False,
    group: Annotated[list[str] | None, typer.Option(help="A group the client belongs to, such as tenant:7.")] = None,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Ask a bundle as a client would."""
    from queen.fit.files import read_query
    from queen.guard import load
    from queen.ledger import SqliteLedger

    guard = load(folder, model, device=device)
    x = read_query(query, guard.bundle)
    store = SqliteLedger(ledger) if ledger else None
    guard.ledger = store or guard.ledger
    refusal = None
    try:
        reply = guard.answer(x, client=client, groups=group or ())
    except RefusedError as error:
        reply, refusal = error.reply, error
    finally:
        if store:
            store.close()
    honest = guard.fresh(observe=True).answer(x, client=client).probabilities if explain else None
    if as_json:
        result: dict[str, Any] = {
            "labels": reply.probabilities.argmax(1).tolist(),
            "probabilities": reply.probabilities.tolist(),
            "verdicts": [verdict.value for verdict in reply.verdicts],
            "alarmed": reply.alarmed.tolist(),
            "refused": reply.refused.tolist(),
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
        out.print(table(header, lines, left=1))
    if refusal is not None:
        raise refusal


@app.command(epilog="Example: `queen inspect build/demo/bundle --map map.png`")
def inspect(
    folder: Folder,
    picture: Annotated[Path | None, typer.Option("--map", help="Write the 2-D map as PNG.")] = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """Show a bundle: policy, classes, spreads, budgets, the map's health."""
    from queen.bundle.store import load_bundle

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
        **_sentinel_facts(bundle),
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
        print_json(facts | {"classes": classes, "report": report})
        return
    from queen.bundle.report import Report

    for name, value in facts.items():
        out.print(f"{name:<22}{value}")
    for line in Report(**report).lines():
        out.print(line)
    header = ("class", "spread", "radius", "answers (about)", "records (bound)")
    lines = [[c["class"], f"{c['spread']:.4g}", f"{c['radius']:.4g}", *map(str, list(c.values())[3:])] for c in classes]
    out.print(table(header, lines, left=1))
    if picture:
        out.print(f"{'map':<22}{picture}")


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
    from queen.fit.files import read_query
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
        result["benign_queries_before_first_refusal"] = guard.report["calibration_first_refused"]
        result["benign_queries_replayed"] = guard.report["calibration_images"]
        if guard.bundle.policy == "sentinel":
            result["honest_answers_per_client"] = guard.report["honest_answers"]
            result["alpha"] = guard.bundle.sentinel.alpha
            result["sentinel"] = list(_sentinel_statements(guard.bundle))
    if guard and queries:
        found = recovery_by_verdict(guard, read_query(queries, guard.bundle))
        result["theorem3"] = {letter: vars(one) for letter, one in found.items()}
    if as_json:
        print_json(result)
        return
    names = ("eta_hat", "rho_paper", "rho_sound", "radius", "records_per_class")
    out.print(table(("quantity", "value"), [(name, f"{result[name]:.6g}") for name in names], left=1))
    for statement in certificate.statements:
        out.print(f"- {statement}")
    if guard and guard.bundle.calibration:
        spent = guard.report["calibration_first_spent"]
        when = f"a first class is spent after {spent} of them" if spent is not None else "no class is spent"
        out.print(f"- Replaying {guard.report['calibration_images']} held-out images: {when}.")
    for statement in result.get("sentinel", ()):
        out.print(f"- {statement}")
    for letter, one in result.get("theorem3", {}).items():
        out.print(
            f"- Verdict {letter}, {one['rows']} queries: no recovery below {one['bound']:.5f} (Theorem 3, estimated), "
            f"best recovery fitted {one['fitted']:.5f}, in squared error per query."
        )


@app.command(epilog="Example: `queen calibrate bundle --data held_out.npz --condition noise --condition jpeg:30`")
def calibrate(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Held-out benign data, .npz with x and y.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(help="noise, blur, brightness, contrast, downscale or jpeg, with an optional :strength."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="mixture: one random condition an image; max: certify each by itself.")
    ] = "mixture",
    seed: Annotated[int, typer.Option(help="Seed of conditions and simulated clients.")] = 0,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Calibrate a bundle's sentinel again, for clients with worse cameras; rewrites the bundle."""
    import queen
    from queen.fit.files import read_data

    guard = queen.calibrate(
        queen.load(folder, model, device=device),
        read_data(data),
        conditions=condition or (),
        conditions_mode=mode,
        seed=seed,
        progress=None if as_json else True,
    )
    guard.save(folder)
    rates = guard.report["alarm_rates"]
    if as_json:
        print_json({"bundle": str(folder), "alarm_rates": rates, "statement": guard.bundle.statement})
        return
    out.print(table(("condition", "accused"), [(name, f"{rate:.0%}") for name, rate in rates.items()], left=1))
    out.print(f"- {guard.bundle.statement}")


@app.command(epilog="Example: `queen speed --json > results/speed/my-machine.json`")
def speed(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the time, rough.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what the guard and its rivals cost, as ratios and rates inside one run."""
    from queen.bench.speed import measure_speed

    found = measure_speed(quick=quick)
    if as_json:
        print_json(found)
        return
    lines = [(f"guard / undefended, {name}", f"{value:.3f}") for name, value in found["guard_ratio"].items()]
    lines += [(f"judge, {name}", f"{value:,.6g}") for name, value in found["judge_per_second"].items()]
    lines += [("sqlite queries/s, batch 32", f"{found['sqlite_per_second']:,.0f}")]
    lines += [("sqlite queries/s with the sentinel, batch 32", f"{found['sqlite_sentinel_per_second']:,.0f}")]
    lines += [(f"{name}, rows/s", f"{value:,.0f}") for name, value in found["rows_per_second"].items()]
    lines += [("gradient reverse, times faster than SLSQP", f"{found['slsqp_ratio']:,.0f}")]
    lines += [
        (f"{name}, times faster than {usual}", f"{found['solver_ratio'][key]:,.0f}") for key, name, usual in SOLVERS
    ]
    out.print(table(("what", "value"), lines, left=1))
    out.print(f"1,000 queries behind each defense; {found['query_time_network']}")
    paper = found["paper_query_time_ratio"]
    ratios = [
        (name, f"{found['query_time_seconds'][name]:.2f}", f"{ratio:.3f}", f"{paper[name]:g}" if name in paper else "")
        for name, ratio in found["query_time_ratio"].items()
    ]
    out.print(table(("defense", "seconds", "x none", "paper"), ratios, left=1))


def _sentinel_facts(bundle: Bundle) -> dict[str, Any]:
    """What `inspect` adds for a bundle whose policy is the sentinel's."""
    if bundle.policy != "sentinel":
        return {}
    return {"honest_answers_bound": bundle.report["honest_answers"], "certificate": bundle.statement}


def _sentinel_statements(bundle: Bundle) -> Iterator[str]:
    """What the sentinel promises, and what it does not say."""
    report = bundle.report
    yield bundle.statement
    yield (
        f"Honest answers per client under the sentinel: at most {report['honest_answers']} distinct ones, "
        f"{sum(report['records_per_class'])} recorded in the discs and {bundle.limits.extra_answers} others."
    )
    if bundle.sentinel.on_alarm in ("label-only", "observe"):
        yield f"Labels are NOT bounded: accused clients still get them (on_alarm {bundle.sentinel.on_alarm})."
    refused = report["calibration_first_refused"]
    when = f"a client is first refused after {refused} of them" if refused is not None else "none is refused"
    yield f"Replaying {report['calibration_images']} held-out images: {when}."
    yield (
        "Alpha is per client: of many benign clients a share of up to alpha may be accused. Not covered: clients whose "
        "images differ from the calibration images, thieves with many accounts outside any group, thieves whose "
        "queries look like benign ones (bounded by the honest answers above), and thieves with labels of their own."
    )


def _draw(bundle: Bundle, path: Path) -> None:
    from queen.fit.files import attempt
    from queen.plots import draw_map, plane_points

    benign = None
    if bundle.calibration:
        labels = bundle.calibration.labels.numpy()
        benign = (plane_points(bundle, bundle.calibration.points.numpy(), labels), labels)
    png = draw_map(bundle, "discs and held-out images" if benign else "discs", benign=benign)
    attempt(lambda: path.write_bytes(png), f"cannot write '{path}'", OSError)
