"""`queen inspect`: what a bundle holds, in words, as JSON or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli.shared import Folder, Json, ModelOption, app, epilog, out, print_json, print_table

if TYPE_CHECKING:
    from queen.bundle.bundle import Bundle


@app.command(
    epilog=epilog(
        "`queen inspect build/demo/bundle --map map.png`",
        "identity policy head factory threshold classes report",
        sometimes="honest_answers_bound scores margin certificate",
    )
)
def inspect(
    folder: Folder,
    picture: Annotated[Path | None, typer.Option("--map", help="Write the 2-D map as PNG.")] = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """Show a bundle: policy, classes, spreads, budgets, and how good its map is."""
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
    from queen.price.stored import bundle_price_lines

    for name, value in facts.items():
        out.print(f"{name:<22}{value}")
    for line in (*Report(**report).lines(), *(f"price: {line}" for line in bundle_price_lines(bundle))):
        out.print(line)
    header = ("class", "spread", "radius", "answers (about)", "records (bound)")
    lines = [[c["class"], f"{c['spread']:.4g}", f"{c['radius']:.4g}", *map(str, list(c.values())[3:])] for c in classes]
    print_table(header, lines, left=1)
    if picture:
        out.print(f"{'map':<22}{picture}")


def _sentinel_facts(bundle: Bundle) -> dict[str, Any]:
    """What `inspect` adds for a bundle whose policy is the sentinel's."""
    if bundle.policy != "sentinel":
        return {}
    return {
        "honest_answers_bound": bundle.report["honest_answers"],
        "scores": ", ".join(bundle.sentinel.scores),
        "margin": bundle.sentinel.margin,
        "certificate": bundle.statement,
    }


def _draw(bundle: Bundle, path: Path) -> None:
    from queen.fit.files import attempt
    from queen.plots import draw_map, plane_points

    benign = None
    if bundle.calibration:
        labels = bundle.calibration.labels.numpy()
        benign = (plane_points(bundle, bundle.calibration.points.numpy(), labels), labels)
    png = draw_map(bundle, "discs and held-out images" if benign else "discs", benign=benign)
    attempt(lambda: path.write_bytes(png), f"cannot write '{path}'", OSError)
